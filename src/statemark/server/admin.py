"""What an operator and monitors ask: health, version, models, and emptying the prefix cache."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response

from statemark import __version__
from statemark.server.errors import JsonResponse
from statemark.server.served import ServedModel
from statemark.server.state import ServerState


async def health(request: Request) -> Response:
    """503 while the model loads, after it failed to, and while the server shuts down."""
    status = request.app.state.server.status()
    return JsonResponse({"status": status}, status_code=200 if status == "ready" else 503)


async def version(request: Request) -> Response:
    return JsonResponse({"version": __version__})


async def models(request: Request) -> Response:
    model = request.app.state.server.model()
    return JsonResponse({"object": "list", "data": [_model_card(model)]})


async def one_model(request: Request) -> Response:
    return JsonResponse(_model_card(request.app.state.server.model(request.path_params["name"])))


def _model_card(model: ServedModel) -> dict[str, object]:
    return {
        "id": model.name,
        "object": "model",
        "created": model.created,
        "owned_by": "statemark",
        "max_model_len": model.max_model_len,
    }


async def reset_prefix_cache(request: Request) -> Response:
    """Forget every cached prefix that no running request reads."""
    state: ServerState = request.app.state.server
    state.model()
    marks = await state.engine.run(lambda model: model.reset_prefix_cache())
    return JsonResponse({"marks_dropped": marks})

"""/v1/responses: input items in, output items out."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response

from statemark.engine.params import Structure
from statemark.server.endpoint import EventStream
from statemark.server.errors import JsonResponse, bad_request
from statemark.server.handling import handling
from statemark.server.protocol import JsonSchemaFormat, ResponseFormat
from statemark.server.reading import answer_reader
from statemark.server.responses.answer import ResponseWriter
from statemark.server.responses.convert import conversation
from statemark.server.responses.protocol import ResponsesRequest
from statemark.server.sampling import given_params
from statemark.server.state import ServerState
from statemark.server.structure import of_response_format


async def responses(http: Request, body: bytes) -> Response:
    state: ServerState = http.app.state.server
    asked = state.parse(body, ResponsesRequest)
    model = state.model(asked.model)
    _refuse_unsupported(asked)
    given = {
        "temperature": asked.temperature,
        "top_p": asked.top_p,
        "top_k": asked.top_k,
        "seed": asked.seed,
        "max_tokens": asked.max_output_tokens,
        "structure": _structure(asked),
    }
    params = given_params(given, model.sampling_defaults)
    talk = conversation(asked)
    request = await talk.request(state, model, params, handling(asked, "resp_"))
    writer = ResponseWriter(asked, model, request, answer_reader(model, talk, request))
    job = await state.engine.submit([request])
    if asked.stream:
        return EventStream(writer.stream(job), job.close)
    return JsonResponse(await writer.whole(job))


def _refuse_unsupported(asked: ResponsesRequest) -> None:
    """Nothing is stored here, and nothing is cut: what would need that is an error."""
    if asked.previous_response_id is not None:
        raise bad_request(
            "previous_response_id is not supported: responses aren't stored; send the whole conversation as input",
            param="previous_response_id",
        )
    if asked.background:
        raise bad_request("background is not supported", param="background")
    if asked.truncation not in (None, "disabled"):
        raise bad_request(f"truncation {asked.truncation!r} is not supported; 'disabled' is", param="truncation")


def _structure(asked: ResponsesRequest) -> Structure | None:
    found = asked.text.format if asked.text is not None else None
    if found is None:
        return None
    schema = JsonSchemaFormat(schema=found.schema) if found.type == "json_schema" else None
    return of_response_format(ResponseFormat(type=found.type, json_schema=schema), "text.format")

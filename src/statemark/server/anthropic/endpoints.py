"""/v1/messages and /v1/messages/count_tokens: the API that coding agents of one vendor speak."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response

from statemark.engine.params import Structure
from statemark.server.answer import Answer
from statemark.server.anthropic.answer import MessageWriter
from statemark.server.anthropic.convert import conversation
from statemark.server.anthropic.protocol import CountRequest, MessagesRequest
from statemark.server.endpoint import EventStream
from statemark.server.errors import JsonResponse, bad_request
from statemark.server.handling import handling
from statemark.server.protocol import JsonSchemaFormat
from statemark.server.reading import answer_reader
from statemark.server.sampling import given_params
from statemark.server.state import ServerState
from statemark.server.structure import of_schema


async def messages(http: Request, body: bytes) -> Response:
    state: ServerState = http.app.state.server
    asked = state.parse(body, MessagesRequest)
    model = state.model(asked.model)
    given = {
        "temperature": asked.temperature,
        "top_p": asked.top_p,
        "top_k": asked.top_k,
        "seed": asked.seed,
        "max_tokens": asked.max_tokens,
        "stop": asked.stop_sequences,
        "structure": _structure(asked),
    }
    params = given_params(given, model.sampling_defaults)
    talk = conversation(asked)
    request = await talk.request(state, model, params, handling(asked, "msg_"))
    writer = MessageWriter(model, request, answer_reader(model, talk, request))
    job = await state.engine.submit([request])
    if asked.stream:
        return EventStream(writer.stream(job), job.close)
    answer = Answer([request])
    await answer.gather(job)
    return JsonResponse(writer.whole(answer))


async def count_tokens(http: Request, body: bytes) -> Response:
    state: ServerState = http.app.state.server
    asked = state.parse(body, CountRequest)
    prompt = await conversation(asked).render(state, state.model(asked.model))
    return JsonResponse({"input_tokens": len(prompt.token_ids)})


def _structure(asked: MessagesRequest) -> Structure | None:
    found = asked.output_config.format if asked.output_config is not None else None
    if found is None:
        return None
    if found.type != "json_schema":
        raise bad_request(
            f"output_config.format {found.type!r} is not supported; 'json_schema' is", param="output_config.format"
        )
    return of_schema(JsonSchemaFormat(schema=found.schema), "output_config.format")

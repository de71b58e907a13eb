"""From request fields to SamplingParams: the model's own defaults, then what the request says. Knows no route."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from statemark.engine.params import SamplingParams
from statemark.server.errors import bad_request
from statemark.server.protocol import CommonRequest
from statemark.server.structure import structure_of

# Fields of a request that are SamplingParams fields of the same name and meaning.
_SAME: tuple[str, ...] = (
    "n",
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "repetition_penalty",
    "presence_penalty",
    "frequency_penalty",
)
_SAME += ("seed", "min_tokens", "ignore_eos", "include_stop_str_in_output", "skip_special_tokens", "prompt_logprobs")


def sampling_params(
    request: CommonRequest, defaults: Mapping[str, Any], *, max_tokens: int | None, logprobs: int | None
) -> SamplingParams:
    """`defaults` are the checkpoint's (generation_config.json); a field that is given always wins."""
    values: dict[str, Any] = dict(defaults)
    values.update({name: value for name in _SAME if (value := getattr(request, name)) is not None})
    if max_tokens is not None:
        values["max_tokens"] = max_tokens
    values.setdefault("max_tokens", None)  # as long as the context lasts
    values["logprobs"] = logprobs
    if request.stop is not None:
        values["stop"] = (request.stop,) if isinstance(request.stop, str) else tuple(request.stop)
    if request.stop_token_ids is not None:
        values["stop_token_ids"] = tuple(request.stop_token_ids)
    if request.logit_bias is not None:
        values["logit_bias"] = _token_keys(request.logit_bias)
    values["structure"] = structure_of(request)
    return SamplingParams.from_fields(values)


def given_params(given: Mapping[str, Any], defaults: Mapping[str, Any]) -> SamplingParams:
    """Fields of another API under our names; None is "not given"."""
    values = {"max_tokens": None, **defaults} | {name: value for name, value in given.items() if value is not None}
    return SamplingParams.from_fields(values)


def _token_keys(bias: Mapping[str, float]) -> dict[int, float]:
    try:
        return {int(token): value for token, value in bias.items()}
    except ValueError as error:
        raise bad_request(f"logit_bias: keys must be token ids; {error}", param="logit_bias") from None

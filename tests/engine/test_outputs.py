"""Steps to deltas to outputs: text, ends, log-probabilities, digests. The engine here only notes what it is told."""

from __future__ import annotations

import hashlib
import itertools
import struct
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from statemark.engine.detokenize import TokenTexts
from statemark.engine.output_processor import OutputProcessor
from statemark.engine.outputs import CompletionOutput, Logprob, OutputBuilder, position_logprobs
from statemark.engine.params import SamplingParams
from statemark.engine.request import EngineRequest, StepOutput, TokenLogprobs
from statemark.errors import InvalidRequestError


class Letters:
    """Token id = code point; 0 is a special token."""

    def decode(self, ids: list[int], skip_special_tokens: bool = True) -> str:
        return "".join("<end>" if i == 0 else chr(i) for i in ids if i or not skip_special_tokens)

    def token(self, token_id: int) -> str:
        return "<end>" if token_id == 0 else chr(token_id)


class Told:
    def __init__(self) -> None:
        self.calls: list[tuple] = []

    def finish(self, request_id: str, index: int) -> None:
        self.calls.append(("finish", request_id, index))

    def abort(self, request_id: str) -> None:
        self.calls.append(("abort", request_id))


TEXTS = TokenTexts(Letters())


def request(request_id: str = "a", **params) -> EngineRequest:
    return EngineRequest(request_id=request_id, prompt_token_ids=(5, 6), params=SamplingParams(**params))


def run(asked: EngineRequest, steps: list[StepOutput]):
    """(output, deltas, what the engine was told)."""
    told = Told()
    processor = OutputProcessor(TEXTS, told)
    builder = OutputBuilder(asked, None, TEXTS.text, clock=iter(range(1000)).__next__)
    processor.add(asked)
    deltas = [delta for step in steps for delta in processor.process([step])]
    for delta in deltas:
        builder.add(delta)
    assert len(processor) == (0 if builder.output.finished else 1)
    return builder.output, deltas, told.calls


def say(text: str, end: str | None = "length", **more) -> list[StepOutput]:
    """One step a letter; the last one ends."""
    steps = [StepOutput("a", 0, [ord(c)]) for c in text]
    steps[-1] = replace(steps[-1], finish_reason=end, **more)
    return steps


# --- text and ends ----------------------------------------------------------------------------------------------


def test_a_plain_answer() -> None:
    output, deltas, told = run(request(), say("hello"))
    assert output.outputs == [
        CompletionOutput(index=0, text="hello", token_ids=[ord(c) for c in "hello"], finish_reason="length")
    ]
    assert output.finished
    assert output.prompt_token_ids == [5, 6]
    assert "".join(delta.text for delta in deltas) == "hello"
    assert told == []


def test_a_stop_string_ends_the_choice_in_the_engine() -> None:
    output, _, told = run(request(stop="lo"), say("hello world"))
    answer = output.outputs[0]
    assert (answer.text, answer.finish_reason, answer.stop_reason) == ("hel", "stop", "lo")
    assert answer.token_ids == [ord(c) for c in "hello"]
    assert told == [("finish", "a", 0)]


def test_a_stop_string_in_the_last_token_needs_no_telling() -> None:
    output, _, told = run(request(stop="o", include_stop_str_in_output=True), say("hello"))
    assert (output.outputs[0].text, output.outputs[0].finish_reason) == ("hello", "stop")
    assert told == []


def test_held_back_text_comes_at_the_end() -> None:
    output, deltas, _ = run(request(stop="lox"), say("hello"))
    assert [delta.text for delta in deltas] == ["h", "e", "", "l", "lo"]
    assert output.outputs[0].text == "hello"


def test_several_tokens_in_a_step_are_cut_after_the_stop_string() -> None:
    row = TokenLogprobs(1, -0.5, 1, (1,), (-0.5,))
    step = StepOutput("a", 0, [ord(c) for c in "abcdef"], [replace(row, token_id=ord(c)) for c in "abcdef"])
    output, _, _ = run(request(stop="c", logprobs=1), [step])
    assert output.outputs[0].text == "ab"
    assert output.outputs[0].token_ids == [ord(c) for c in "abc"]
    assert len(output.outputs[0].logprobs or ()) == 3


@pytest.mark.parametrize(("include", "text"), [(False, "ab"), (True, "abX")])
def test_the_text_of_a_stop_id_is_left_out_unless_asked_for(include, text) -> None:
    asked = request(stop_token_ids=[ord("X")], include_stop_str_in_output=include)
    output, _, _ = run(asked, say("abX", "stop", stop_token_id=ord("X")))
    answer = output.outputs[0]
    assert (answer.text, answer.finish_reason, answer.stop_reason) == (text, "stop", ord("X"))
    assert answer.token_ids[-1] == ord("X")


@pytest.mark.parametrize(("params", "text"), [({}, "ab"), ({"skip_special_tokens": False}, "ab")])
def test_the_end_token_gives_no_stop_reason_and_no_text(params, text) -> None:
    output, _, _ = run(request(**params), say("ab\0", "stop", stop_token_id=0))
    answer = output.outputs[0]
    assert (answer.text, answer.finish_reason, answer.stop_reason) == (text, "stop", None)


def test_special_tokens_inside_an_answer_are_shown_on_request() -> None:
    assert run(request(), say("a\0b"))[0].outputs[0].text == "ab"
    assert run(request(skip_special_tokens=False), say("a\0b"))[0].outputs[0].text == "a<end>b"


def test_without_detokenizing_there_are_only_ids() -> None:
    output, _, _ = run(request(detokenize=False), say("abc"))
    assert (output.outputs[0].text, output.outputs[0].token_ids) == ("", [97, 98, 99])


def test_choices_end_one_by_one() -> None:
    asked = request(n=2, stop="b")
    steps = [
        StepOutput("a", 0, [ord("a")], num_cached_tokens=1),
        StepOutput("a", 1, [ord("x")], num_cached_tokens=2),
        StepOutput("a", 0, [ord("b")], num_cached_tokens=1),
        StepOutput("a", 0, [ord("c")], num_cached_tokens=1),  # the engine had it under way
        StepOutput("a", 1, [ord("y")], num_cached_tokens=2, finish_reason="length"),
    ]
    output, deltas, told = run(asked, steps)
    assert [(c.text, c.finish_reason) for c in output.outputs] == [("a", "stop"), ("xy", "length")]
    assert output.num_cached_tokens == 1
    assert told == [("finish", "a", 0)]
    assert len(deltas) == 4


def test_an_error_ends_all_choices_and_tells_the_engine() -> None:
    asked = request(n=3)
    steps = [StepOutput("a", 0, [ord("a")]), StepOutput("a", 1, finish_reason="error", error="logits are NaN")]
    output, _, told = run(asked, steps)
    assert [(c.text, c.finish_reason, c.error) for c in output.outputs] == [
        ("a", "error", "logits are NaN"),
        ("", "error", "logits are NaN"),
        ("", "error", "logits are NaN"),
    ]
    assert told == [("abort", "a")]


def test_an_abort_by_the_engine_keeps_what_came() -> None:
    output, _, _ = run(request(), say("ab", "abort"))
    assert (output.outputs[0].text, output.outputs[0].finish_reason) == ("ab", "abort")


def test_news_of_forgotten_requests_is_dropped() -> None:
    processor = OutputProcessor(TEXTS, Told())
    processor.add(request())
    processor.abort("a")
    processor.abort("a")
    assert processor.process([StepOutput("a", 0, [97]), StepOutput("b", 0, [97])]) == []
    assert len(processor) == 0


def test_requests_do_not_mix() -> None:
    processor = OutputProcessor(TEXTS, Told())
    for name in ("a", "b"):
        processor.add(request(name, stop="xy"))
    steps = [StepOutput(name, 0, [ord(c)]) for c in "xz" for name in ("a", "b")]
    assert [(d.request_id, d.text) for d in processor.process(steps)] == [
        ("a", ""),
        ("b", ""),
        ("a", "xz"),
        ("b", "xz"),
    ]


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    text=st.text(alphabet="abc", min_size=1, max_size=30),
    cuts=st.sets(st.integers(1, 29)),
    stops=st.lists(st.text(alphabet="abc", min_size=1, max_size=3), max_size=2),
    end=st.sampled_from(["length", "stop"]),
)
def test_how_tokens_fall_into_steps_changes_nothing(text, cuts, stops, end) -> None:
    edges = [0, *sorted(c for c in cuts if c < len(text)), len(text)]
    more = {"stop_token_id": ord(text[-1])} if end == "stop" else {}
    whole = [StepOutput("a", 0, [ord(c) for c in text[i:j]]) for i, j in itertools.pairwise(edges)]
    whole[-1] = replace(whole[-1], finish_reason=end, **more)
    asked = request(stop=stops, max_tokens=50)
    assert run(asked, whole)[0].outputs == run(asked, say(text, end, **more))[0].outputs


# --- log-probabilities ------------------------------------------------------------------------------------------


def row_of(token_id: int, top: int = 20, rank: int = 1, seed: int = 0) -> TokenLogprobs:
    values = np.sort(-np.random.default_rng(seed).random(top).astype(np.float32))[::-1]
    return TokenLogprobs(token_id, -7.25, rank, tuple(range(200, 200 + top)), tuple(values.tolist()))


def test_a_position_lists_the_most_likely_and_then_the_chosen() -> None:
    row = TokenLogprobs(7, -3.0, 9, (4, 5), (-0.5, -1.0))
    assert list(position_logprobs(row, str).items()) == [
        (4, Logprob(-0.5, 1, "4")),
        (5, Logprob(-1.0, 2, "5")),
        (7, Logprob(-3.0, 9, "7")),
    ]
    assert list(position_logprobs(replace(row, token_id=5, rank=2, logprob=-1.0), str)) == [4, 5]


def test_logprobs_of_answer_and_prompt() -> None:
    steps = say("ab")
    steps[0].prompt_logprobs = [None, TokenLogprobs(6, -2.0, 3, (), ())]
    for step in steps:
        step.new_logprobs = [TokenLogprobs(step.new_token_ids[0], -0.5, 1, (), ())]
    output, _, _ = run(request(logprobs=0, prompt_logprobs=0), steps)
    assert output.prompt_logprobs == [None, {6: Logprob(-2.0, 3, "\x06")}]
    assert output.outputs[0].logprobs == [{97: Logprob(-0.5, 1, "a")}, {98: Logprob(-0.5, 1, "b")}]
    assert output.outputs[0].cumulative_logprob == -1.0


def test_logprobs_that_nobody_asked_for_are_none() -> None:
    output, _, _ = run(request(), say("ab"))
    assert output.outputs[0].logprobs is None
    assert output.outputs[0].cumulative_logprob is None
    assert output.prompt_logprobs is None


# --- digests ----------------------------------------------------------------------------------------------------


def digest_of(rows: list[TokenLogprobs]) -> str:
    steps = [StepOutput("a", 0, [row.token_id], [row]) for row in rows]
    steps[-1].finish_reason = "length"
    return run(request(logprobs=20), steps)[0].digest()


def test_the_digest_is_over_ids_and_float32_bits() -> None:
    rows = [row_of(200), row_of(999, rank=50, seed=1)]
    expected = hashlib.sha256()
    for row in rows:
        expected.update(struct.pack("<I", row.token_id))
        for token_id, logprob in zip(row.top_ids, row.top_logprobs, strict=True):
            expected.update(struct.pack("<I", token_id) + np.float32(logprob).tobytes())
    assert digest_of(rows) == expected.hexdigest()


def test_the_digest_sees_one_bit_one_id_and_one_place() -> None:
    row = row_of(200)
    bit = tuple(
        float(np.nextafter(np.float32(v), np.float32(-9))) if i == 19 else v for i, v in enumerate(row.top_logprobs)
    )
    others = [
        replace(row, top_logprobs=bit),
        replace(row, token_id=201),
        replace(row, top_ids=(*row.top_ids[:-1], 999)),
        replace(row, top_ids=(*row.top_ids[:-2], row.top_ids[-1], row.top_ids[-2])),
    ]
    digests = {digest_of([row, row]), digest_of([row])} | {digest_of([row, other]) for other in others}
    assert len(digests) == 6


@pytest.mark.parametrize(("logprobs", "rank"), [(None, 1), (5, 1), (19, 50)])
def test_a_digest_needs_all_twenty(logprobs, rank) -> None:
    step = StepOutput(
        "a", 0, [999], None if logprobs is None else [row_of(999, logprobs, rank)], finish_reason="length"
    )
    output, _, _ = run(request(logprobs=logprobs), [step])
    with pytest.raises(InvalidRequestError, match="20 most likely") as caught:
        output.digest()
    assert "logprobs=20" in caught.value.hint


def test_the_digest_of_several_answers_covers_each() -> None:
    def two(second: int) -> str:
        steps = [StepOutput("a", i, [t], [row_of(t)], finish_reason="length") for i, t in enumerate((200, second))]
        return run(request(n=2, logprobs=20), steps)[0].digest()

    assert two(201) == two(201) != two(202)


def test_metrics_do_not_count_when_outputs_are_compared() -> None:
    first, second = run(request(), say("ab"))[0], run(request(), say("ab"))[0]
    second.metrics.first_token = 99.0
    assert first == second
    assert first.metrics.time_to_first_token == 1
    assert first.metrics.finished == 2

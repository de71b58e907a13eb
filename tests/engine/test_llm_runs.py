"""The offline API at work: what the cache saves, conversations, streams, interruptions and requests that fail."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from statemark import ConfigurationError, InvalidRequestError, SamplingParams
from statemark.engine.outputs import TextDelta
from statemark.engine.params import Structure
from tests.engine.chat_templates import REASONING
from tests.engine.conftest import load

GREEDY = SamplingParams(temperature=0, max_tokens=6)


def user(text: str) -> dict:
    return {"role": "user", "content": text}


# --- drafts -----------------------------------------------------------------------------------------------------


def test_drafts_change_the_number_of_steps_and_no_bit_also_under_a_grammar(folder) -> None:
    structured = SamplingParams(max_tokens=60, logprobs=20, seed=3, structure=Structure("regex", "(to be or not ){8}"))
    params = [structured, replace(structured, temperature=0.0), SamplingParams(max_tokens=60, logprobs=20, seed=4)]
    digests, steps = [], []
    for drafts in (0, 4):
        llm = load(folder, num_speculative_tokens=drafts)
        digests.append([llm.generate("some words", p)[0].digest() for p in params])
        steps.append(llm.stats()["steps"])
    assert digests[0] == digests[1]
    assert steps[1] < steps[0]


# --- the cache --------------------------------------------------------------------------------------------------


def test_asking_again_computes_one_token_and_gives_the_same_bits(folder) -> None:
    llm = load(folder)
    params = SamplingParams(max_tokens=8, seed=1, logprobs=20)
    cold, warm = (llm.generate("some words that come twice", params)[0] for _ in range(2))
    without = load(folder, enable_prefix_caching=False).generate("some words that come twice", params)[0]
    assert cold.num_cached_tokens == without.num_cached_tokens == 0
    assert warm.num_cached_tokens == len(warm.prompt_token_ids) - 1
    assert cold.digest() == warm.digest() == without.digest()


def test_salts_share_nothing(folder) -> None:
    llm = load(folder)

    def cached(salt: str) -> int:
        return llm.generate({"prompt_token_ids": list(range(50)), "cache_salt": salt}, GREEDY)[0].num_cached_tokens

    assert [cached("a"), cached("b"), cached("a"), cached("")] == [0, 0, 49, 0]


# --- chat -------------------------------------------------------------------------------------------------------


def test_a_conversation_reuses_what_it_has(folder) -> None:
    llm = load(folder)
    messages = [{"role": "system", "content": "be kind " * 10}, user("hi")]
    first = llm.chat(messages, GREEDY)[0]
    assert first.prompt is not None
    assert first.prompt.endswith("<|im_start|>assistant\n")
    assert first.num_cached_tokens == 0
    messages += [{"role": "assistant", "content": first.outputs[0].text}, user("and more")]
    second = llm.chat(messages, GREEDY)[0]
    header = len(llm.get_tokenizer().encode("<|im_start|>assistant\n"))
    assert second.num_cached_tokens >= len(first.prompt_token_ids) - header
    # Another question after the same system message goes on from where the user message begins.
    other = llm.chat([messages[0], user("quite different")], GREEDY)[0]
    system = len(llm.get_tokenizer().encode(f"<|im_start|>system\n{messages[0]['content']}<|im_end|>\n"))
    assert other.num_cached_tokens >= system


def test_several_conversations_and_options(folder) -> None:
    llm = load(folder, chat_template=REASONING)
    outputs = llm.chat(
        [[user("a")], [user("b"), {"role": "assistant", "content": "c"}, user("d")]],
        [GREEDY, GREEDY],
        tools=[{"type": "function", "function": {"name": "f"}}],
        chat_template_kwargs={"enable_thinking": False},
    )
    assert len(outputs) == 2
    for output in outputs:
        assert output.prompt is not None
        assert '"name": "f"' in output.prompt
        assert output.prompt.endswith("<think>\n\n</think>\n\n")


def test_going_on_with_the_last_message(llm) -> None:
    messages = [user("a"), {"role": "assistant", "content": "It is"}]
    output = llm.chat(messages, GREEDY, add_generation_prompt=False, continue_final_message=True)[0]
    assert output.prompt is not None
    assert output.prompt.endswith("<|im_start|>assistant\nIt is")


@pytest.mark.parametrize(
    ("messages", "message"),
    [
        ("hello", "messages must be a list"),
        ([], "at least one message"),
        ([user("a"), {"role": "user", "content": 5}], r"messages\[1\].content"),
        ([[user("a")], [{"content": "b"}]], r"conversation 1: messages\[0\].role"),
        ([[user("a")], [user("b " * 9000)]], "prompt 1: the prompt is too long"),
    ],
)
def test_bad_conversations(llm, messages, message) -> None:
    with pytest.raises(InvalidRequestError, match=message):
        llm.chat(messages, GREEDY)


def test_templates_from_text_file_and_nowhere(folder, tmp_path) -> None:
    source = "{% for m in messages %}{{ m.content }}{% endfor %}"
    (tmp_path / "own.jinja").write_text(source)
    for template in (source, tmp_path / "own.jinja", str(tmp_path / "own.jinja")):
        assert load(folder, chat_template=template).chat([user("abc")], GREEDY)[0].prompt == "abc"
    with pytest.raises(ConfigurationError, match=r"missing\.jinja"):
        load(folder, chat_template="missing.jinja")


def test_a_model_without_a_template(llm, monkeypatch) -> None:
    monkeypatch.setattr(llm.text_engine, "_template", None)
    with pytest.raises(InvalidRequestError, match="no chat template"):
        llm.chat([user("a")], GREEDY)


# --- streams, interruptions, failures ---------------------------------------------------------------------------


def test_a_stream_adds_up_to_the_answer(llm) -> None:
    params = SamplingParams(max_tokens=20, seed=4, n=2)
    deltas = list(llm.stream("tell", params))
    whole = llm.generate("tell", params)[0]
    for output in whole.outputs:
        mine = [delta for delta in deltas if delta.index == output.index]
        assert "".join(delta.text for delta in mine) == output.text
        assert [token for delta in mine for token in delta.token_ids] == output.token_ids
        assert [delta.finish_reason for delta in mine[:-1]] == [None] * (len(mine) - 1)
        assert mine[-1].finish_reason == output.finish_reason


def test_one_stream_at_a_time_and_closing_ends_it(llm) -> None:
    first = llm.stream("a", SamplingParams(max_tokens=50, ignore_eos=True))
    next(first)
    with pytest.raises(InvalidRequestError, match="still being streamed"):
        llm.generate("b", GREEDY)
    with pytest.raises(InvalidRequestError, match="still being streamed"):
        next(llm.stream("b", GREEDY))
    first.close()
    assert not llm.text_engine.has_work()


def test_a_bad_stream_says_so(llm) -> None:
    with pytest.raises(InvalidRequestError, match="empty"):
        next(llm.stream(""))


def test_an_interrupt_leaves_nothing_behind(llm, monkeypatch) -> None:
    step = llm.text_engine.step
    steps = iter(range(3))

    def interrupted() -> list[TextDelta]:
        if next(steps, None) is None:
            raise KeyboardInterrupt
        return step()

    monkeypatch.setattr(llm.text_engine, "step", interrupted)
    with pytest.raises(KeyboardInterrupt):
        llm.generate(["a", "b"], SamplingParams(max_tokens=30, ignore_eos=True))
    monkeypatch.undo()
    assert not llm.text_engine.has_work()
    assert llm.generate("a", GREEDY)[0].finished


def test_a_request_that_fails_does_not_take_others_along(llm, monkeypatch) -> None:
    alone = llm.generate(["one", "three"], GREEDY)
    executor = llm.text_engine.engine.executor
    logits = executor.logits
    bad = llm.get_tokenizer().encode("two")
    monkeypatch.setattr(executor, "run", _noting_rows(executor, bad))

    def poisoned(rows):
        values = np.array(logits(rows))
        for i, row in enumerate(rows):
            if row in executor.bad_rows:
                values[i] = np.nan
        return values

    monkeypatch.setattr(executor, "logits", poisoned)
    outputs = llm.generate(["one", "two", "three"], GREEDY)
    assert [outputs[0].outputs, outputs[2].outputs] == [output.outputs for output in alone]
    failed = outputs[1].outputs[0]
    assert failed.finish_reason == "error"
    assert "not finite" in (failed.error or "")
    assert outputs[1].finished


def _noting_rows(executor, prompt: list[int]):
    """Remembers which rows of a step belong to the sequence with this prompt."""
    run = executor.run

    def noting(plan) -> None:
        executor.bad_rows, row = set(), 0
        for chunk in plan.chunks:
            if list(chunk.seq.request.prompt_token_ids) == prompt:
                executor.bad_rows |= set(range(row, row + chunk.count))
            row += chunk.count
        run(plan)

    return noting

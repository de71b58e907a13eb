"""Text and settings that can't work: said in a user's words, before work is spent on them; and Ctrl-C inside a step."""

import os
import signal

import pytest

from statemark import LLM, SamplingParams
from statemark.engine.interrupts import interrupts_after
from statemark.errors import CheckpointError, ConfigurationError, InvalidRequestError
from statemark.models import load_tokenizer
from statemark.models.make_model import make_model


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("model") / "tiny"
    make_model(path, like="qwen3.5-0.8b", scale="tiny")
    return path


@pytest.fixture(scope="module")
def llm(folder):
    return LLM(folder, num_threads=1, cache_memory="64MiB", max_model_len=200)


@pytest.mark.parametrize("text", ["\ud800", "a\udcff", b"\xff\xfe".decode(errors="surrogateescape")])
def test_text_that_is_not_unicode_is_refused(llm, text):
    with pytest.raises(InvalidRequestError, match="not valid Unicode"):
        llm.generate(text, use_tqdm=False)
    with pytest.raises(InvalidRequestError, match="not valid Unicode"):
        llm.chat([{"role": "user", "content": text}], use_tqdm=False)
    assert llm.generate("still here", SamplingParams(max_tokens=1), use_tqdm=False)[0].finished


def test_a_text_that_can_not_fit_is_refused_without_being_tokenised(llm, monkeypatch):
    def fail(*_, **__):
        raise AssertionError("it was tokenised")

    monkeypatch.setattr(type(llm.text_engine.tokenizer), "encode_with_spans", fail)
    with pytest.raises(InvalidRequestError, match="1,000,000 characters can't fit 200 tokens"):
        llm.generate("a" * 1_000_000, use_tqdm=False)


def test_the_size_check_never_refuses_what_fits(folder):
    tokenizer = load_tokenizer(folder)
    for token_id in range(tokenizer.vocab_size):
        assert len(tokenizer.decode([token_id], skip_special_tokens=False).encode()) <= 4 * tokenizer.longest_token()


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"num_threads": -1}, "threads"),
        ({"num_threads": 5000}, "5000"),
        ({"cache_memory": "999999999GiB"}, "no room for"),
    ],
)
def test_settings_that_no_machine_has(folder, options, words):
    with pytest.raises(ConfigurationError, match=words) as caught:
        LLM(folder, **{"num_threads": 1, "cache_memory": "64MiB", **options})
    assert caught.value.hint


def test_an_empty_name_is_not_the_current_folder():
    with pytest.raises(CheckpointError, match="name is empty"):
        LLM("")


def test_an_interrupt_waits_for_the_end_of_the_block():
    done = []

    def block():
        with interrupts_after():
            os.kill(os.getpid(), signal.SIGINT)
            done.append("the rest of the block")

    with pytest.raises(KeyboardInterrupt):
        block()
    assert done
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_an_interrupt_within_a_step_leaves_nothing_torn(llm, monkeypatch):
    executor = llm.text_engine.engine.executor
    run = executor.run

    def interrupted(plan):
        run(plan)
        os.kill(os.getpid(), signal.SIGINT)

    prompt = {"prompt_token_ids": list(range(50))}
    right = llm.generate(prompt, SamplingParams(max_tokens=4, temperature=0), use_tqdm=False)[0].outputs[0].token_ids
    monkeypatch.setattr(executor, "run", interrupted)
    with pytest.raises(KeyboardInterrupt):
        llm.generate(prompt, SamplingParams(max_tokens=4, temperature=0), use_tqdm=False)
    monkeypatch.undo()
    llm.text_engine.engine.check_integrity()
    assert llm.stats().get("integrity_errors", 0) == 0
    again = llm.generate(prompt, SamplingParams(max_tokens=4, temperature=0), use_tqdm=False)[0]
    assert (again.outputs[0].token_ids, again.num_cached_tokens) == (right, 49)

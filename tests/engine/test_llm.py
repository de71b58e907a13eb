"""The offline API on a real tiny model: prompts, parameters, ends, chats, and all that can be wrong with them."""

from __future__ import annotations

import io
import json
import shutil
import subprocess
import sys

import numpy as np
import pytest
from rich.console import Console

import statemark
from statemark import LLM, ConfigurationError, InvalidRequestError, SamplingParams
from statemark.engine import llm as module
from statemark.engine.outputs import TextDelta
from statemark.engine.progress import GenerationProgress
from statemark.engine.request import EngineRequest
from tests.engine.conftest import load

GREEDY = SamplingParams(temperature=0, max_tokens=6)


# --- prompts ----------------------------------------------------------------------------------------------------


def test_all_ways_to_give_a_prompt(llm) -> None:
    ids = llm.get_tokenizer().encode("hello")
    text, listed, as_ids, mapping = (
        llm.generate("hello", GREEDY),
        llm.generate(["hello"], GREEDY),
        llm.generate({"prompt_token_ids": np.array(ids)}, GREEDY),
        llm.generate([{"prompt": "hello"}], GREEDY),
    )
    assert text[0].prompt == "hello"
    assert as_ids[0].prompt is None
    for outputs in (text, listed, as_ids, mapping):
        assert outputs[0].prompt_token_ids == ids
        assert outputs[0].outputs[0].token_ids == text[0].outputs[0].token_ids
        assert len(outputs[0].outputs[0].token_ids) == 6
        assert outputs[0].outputs[0].finish_reason == "length"
        assert outputs[0].finished


def test_answers_come_in_the_order_of_the_prompts(llm) -> None:
    prompts = [f"prompt {i} " * (1 + i % 5) for i in range(25)]
    together = llm.generate(prompts, GREEDY)
    assert [output.prompt for output in together] == prompts
    alone = [llm.generate(prompt, GREEDY)[0] for prompt in prompts]
    assert [o.outputs for o in together] == [o.outputs for o in alone]


def test_no_prompts_no_answers(llm) -> None:
    assert llm.generate([], GREEDY) == []


def test_each_prompt_may_have_its_own_params(llm) -> None:
    lengths = [1, 3, 2]
    outputs = llm.generate(["a", "b", "c"], [SamplingParams(temperature=0, max_tokens=n) for n in lengths])
    assert [len(output.outputs[0].token_ids) for output in outputs] == lengths


def test_text_is_the_decoding_of_the_ids(llm) -> None:
    output = llm.generate("hello", SamplingParams(max_tokens=60, seed=3, ignore_eos=True))[0].outputs[0]
    assert output.text == llm.get_tokenizer().decode(output.token_ids)


BAD = [
    ("", "the prompt is empty"),
    ({"prompt_token_ids": []}, "the prompt is empty"),
    ({"prompt_token_ids": [5] * 9000}, "9000 tokens"),
    ({"prompt_token_ids": [10**6]}, "token id 1000000 is outside"),
    ({"prompt_token_ids": [-1]}, "token id -1 is outside"),
    ({"prompt_token_ids": [1.5]}, "whole numbers, got 1.5"),
    ({"prompt_token_ids": "abc"}, "list of whole numbers, got str"),
    ({"prompt_token_ids": [True]}, "whole numbers, got True"),
    ({"prompt": 5}, "prompt must be a text"),
    ({"prompt": "a", "prompt_token_ids": [1]}, "either prompt or prompt_token_ids"),
    ({}, "either prompt or prompt_token_ids"),
    ({"prompt": "a", "multi_modal_data": {}}, "unknown key: multi_modal_data"),
    ({"prompt": "a", "cache_salt": 5}, "cache_salt must be a text"),
    (5, "must be a text or a mapping"),
]


@pytest.mark.parametrize(("bad", "message"), BAD, ids=lambda value: repr(value)[:40])
def test_a_bad_prompt_is_named_and_nothing_is_computed(llm, bad, message) -> None:
    steps = llm.stats()["steps"]
    with pytest.raises(InvalidRequestError, match=message) as caught:
        llm.generate(["fine", bad, "fine too"], GREEDY)
    assert "prompt 1" in str(caught.value)
    assert llm.stats()["steps"] == steps
    assert len(llm.generate("still there", GREEDY)) == 1


@pytest.mark.parametrize(
    ("prompts", "message"),
    [([1, 2, 3], "a list of numbers"), (None, "prompts must be a text"), (5, "prompts must be a text")],
)
def test_prompts_of_the_wrong_kind(llm, prompts, message) -> None:
    with pytest.raises(InvalidRequestError, match=message):
        llm.generate(prompts, GREEDY)


@pytest.mark.parametrize(
    ("params", "message"), [([GREEDY], "1 sampling_params for 2 prompts"), (["x", "y"], "must be")]
)
def test_params_of_the_wrong_number_or_kind(llm, params, message) -> None:
    with pytest.raises(InvalidRequestError, match=message):
        llm.generate(["a", "b"], params)


def test_ids_of_params_beyond_the_vocabulary(llm) -> None:
    for params in (SamplingParams(logit_bias={10**6: 1}), SamplingParams(stop_token_ids=[10**6])):
        with pytest.raises(InvalidRequestError, match="token id 1000000"):
            llm.generate("a", params)


# --- parameters -------------------------------------------------------------------------------------------------


def test_a_seed_repeats_an_answer_and_its_absence_varies_it(folder, llm) -> None:
    seeded = SamplingParams(max_tokens=12, seed=5)
    assert llm.generate("a", seeded)[0].outputs == llm.generate("a", seeded)[0].outputs
    free = SamplingParams(max_tokens=12)
    first, second = (load(folder, seed=7).generate(["a", "a"], free) for _ in range(2))
    assert [o.outputs for o in first] == [o.outputs for o in second]
    assert first[0].outputs[0].token_ids != first[1].outputs[0].token_ids
    other = load(folder, seed=8).generate(["a", "a"], free)
    assert other[0].outputs[0].token_ids != first[0].outputs[0].token_ids


def test_several_choices(llm) -> None:
    params = SamplingParams(n=4, max_tokens=8, seed=1)
    outputs = llm.generate("a", params)[0].outputs
    assert [output.index for output in outputs] == [0, 1, 2, 3]
    assert len({tuple(output.token_ids) for output in outputs}) == 4
    assert llm.generate("a", params)[0].outputs == outputs


def test_stop_strings(llm) -> None:
    params = SamplingParams(max_tokens=40, seed=2, ignore_eos=True)
    whole = llm.generate("tell", params)[0].outputs[0].text
    stop = whole[20:23]
    end = whole.find(stop)
    for include in (False, True):
        asked = SamplingParams(
            max_tokens=40, seed=2, ignore_eos=True, stop=["never there", stop], include_stop_str_in_output=include
        )
        output = llm.generate("tell", asked)[0].outputs[0]
        assert (output.finish_reason, output.stop_reason) == ("stop", stop)
        assert output.text == whole[: end + len(stop) if include else end]


def test_stop_ids_and_end_tokens(llm) -> None:
    pushed = 300
    params = SamplingParams(temperature=0, max_tokens=5, logit_bias={pushed: 100}, stop_token_ids=[pushed])
    output = llm.generate("a", params)[0].outputs[0]
    assert (output.token_ids, output.text, output.stop_reason) == ([pushed], "", pushed)
    params = SamplingParams(
        temperature=0, max_tokens=5, logit_bias={pushed: 100}, stop_token_ids=[pushed], min_tokens=3
    )
    assert len(llm.generate("a", params)[0].outputs[0].token_ids) == 4
    (end, *_) = llm.get_tokenizer().eos_token_ids
    output = llm.generate("a", SamplingParams(temperature=0, logit_bias={end: 100}))[0].outputs[0]
    assert (output.token_ids, output.text, output.finish_reason, output.stop_reason) == ([end], "", "stop", None)
    params = SamplingParams(temperature=0, logit_bias={end: 100}, ignore_eos=True, max_tokens=3)
    assert llm.generate("a", params)[0].outputs[0].token_ids == [end] * 3


def test_logprobs_of_answer_and_prompt(llm) -> None:
    params = SamplingParams(temperature=0, max_tokens=4, logprobs=3, prompt_logprobs=2)
    output = llm.generate({"prompt_token_ids": [5, 6, 7, 8]}, params)[0]
    answer = output.outputs[0]
    assert answer.logprobs is not None
    assert output.prompt_logprobs is not None
    assert [len(entry) for entry in answer.logprobs] == [3, 3, 3, 3]
    chosen = [entry[token] for entry, token in zip(answer.logprobs, answer.token_ids, strict=True)]
    assert [row.rank for row in chosen] == [1, 1, 1, 1]
    assert answer.cumulative_logprob == pytest.approx(sum(row.logprob for row in chosen))
    assert output.prompt_logprobs[0] is None
    assert [token in entry for token, entry in zip([6, 7, 8], output.prompt_logprobs[1:], strict=True)] == [True] * 3
    # The same numbers, asked the other way round: the answer as a part of a prompt.
    whole = llm.generate({"prompt_token_ids": [5, 6, 7, 8, *answer.token_ids]}, params)[0]
    assert whole.prompt_logprobs is not None
    again = [entry[token] for entry, token in zip(whole.prompt_logprobs[4:], answer.token_ids, strict=True) if entry]
    assert [row.logprob for row in again] == [row.logprob for row in chosen]


def test_the_models_own_defaults(folder, tmp_path) -> None:
    copy = shutil.copytree(folder, tmp_path / "copy")
    recommended = {"temperature": 0.6, "top_k": 20, "top_p": 0.95, "max_new_tokens": 5}
    (copy / "generation_config.json").write_text(json.dumps(recommended))
    llm = load(copy)
    assert llm.get_default_sampling_params() == SamplingParams(temperature=0.6, top_k=20, top_p=0.95, max_tokens=5)
    assert len(llm.generate("a")[0].outputs[0].token_ids) <= 5


# --- loading ----------------------------------------------------------------------------------------------------


def test_unknown_options_are_errors(folder) -> None:
    with pytest.raises(TypeError, match="tensor_parallel_size"):
        LLM(folder, tensor_parallel_size=2)  # type: ignore[call-arg]
    with pytest.raises(TypeError, match="lora_request"):
        load(folder).generate("a", GREEDY, lora_request=None)  # type: ignore[call-arg]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"cache_memory": "1 XB"}, "cache_memory '1 XB' is not a size"),
        ({"cache_memory": -5}, "cache_memory must be at least 1 byte, got -5"),
        ({"cache_memory": 100}, "cache memory of 100 bytes is too small"),
        ({"max_num_seqs": 0}, "max_num_seqs must be at least 1, got 0"),
        ({"max_num_batched_tokens": -1}, "max_num_batched_tokens must be at least 1, got -1"),
        ({"seed": "x"}, "seed must be a whole number, got 'x'"),
        ({"dtype": "int4"}, "dtype must be one of"),
    ],
)
def test_options_that_cannot_work(folder, options, message) -> None:
    with pytest.raises(ConfigurationError, match=message):
        load(folder, **options)


def test_what_is_in_use_can_be_asked(folder) -> None:
    llm = load(folder, max_model_len=100, max_num_seqs=2, max_num_batched_tokens=8, isa="portable")
    assert (llm.isa, llm.num_threads, llm.max_model_len) == ("portable", 1, 100)
    assert llm.stats()["cache_bytes"] == 64 << 20


def test_without_a_name_the_bundled_model_is_meant(folder, tmp_path, monkeypatch) -> None:
    monkeypatch.setattr("statemark.bundled.path", lambda: folder)
    assert LLM(cache_memory="64MiB", num_threads=1).generate("a", GREEDY)[0].finished
    monkeypatch.setattr("statemark.bundled.path", lambda: tmp_path)
    with pytest.raises(ConfigurationError, match="none of its own") as caught:
        LLM()
    assert "make-model" in caught.value.hint


def test_seeds_of_requests_are_pinned() -> None:
    assert module._derived_seed(0, 0) == 1041621211125469266
    assert len({module._derived_seed(s, n) for s in range(-2, 3) for n in range(20)}) == 100


# --- progress ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("terminal", "show"), [(True, True), (True, False), (False, True)])
def test_progress_is_shown_where_somebody_looks(terminal, show) -> None:
    out = io.StringIO()
    console = Console(file=out, force_terminal=terminal, width=100, color_system=None)
    request = EngineRequest(request_id="r", prompt_token_ids=(1,), params=SamplingParams(n=2))
    with GenerationProgress([request], show, console) as progress:
        progress.add(TextDelta(request_id="r", index=0, token_ids=[1, 2], finish_reason="length"))
        progress.add(TextDelta(request_id="r", index=1, token_ids=[3], finish_reason="length"))
        progress._bar.refresh()
        shown = out.getvalue()
    assert ("1/1" in shown and "3 tokens" in shown) is (terminal and show)
    if not (terminal and show):
        assert out.getvalue() == ""


# --- public names -----------------------------------------------------------------------------------------------


def test_public_names_are_what_they_say() -> None:
    homes = [name for names in statemark._HOMES.values() for name in names]
    assert sorted(statemark.__all__) == sorted([*homes, "__version__"])
    assert all(getattr(statemark, name).__name__ == name for name in homes)
    assert set(statemark.__all__) <= set(dir(statemark))
    with pytest.raises(AttributeError, match="Llm"):
        statemark.Llm  # noqa: B018


def test_importing_the_package_loads_nothing_heavy() -> None:
    code = "import sys, statemark; print(sorted({'numpy', 'jinja2', 'tokenizers', 'rich'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"

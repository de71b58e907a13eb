"""Questions to the bundled model through every path: the same numbers on each, and right answers.

The same paths run on a twin with random weights, which has no right answers but as many ways to differ.
"""

from __future__ import annotations

import json
import shutil
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import pytest
from training.shape import Shape

from statemark import bundled
from statemark.cache.disk import Always
from statemark.demo.document import Question, make_document
from statemark.engine.core import Engine
from statemark.engine.disk import DiskOptions
from statemark.engine.model_executor import ModelExecutor
from statemark.engine.outputs import OutputBuilder, RequestOutput
from statemark.engine.params import SamplingParams
from statemark.engine.request import EngineRequest
from statemark.engine.sampler import Sampler
from statemark.engine.text_engine import TextEngine
from statemark.kernels import Runtime
from statemark.models import load_model, load_tokenizer
from statemark.models.make_model import write_model

SECTION = 14  # facts: documents of about 300 tokens, so that computing them token by token takes no minute
ANSWER = 48
Answers = dict[str, RequestOutput]


@dataclass(frozen=True)
class Asked:
    question: Question
    request: EngineRequest


class Model:
    def __init__(self, folder: Path) -> None:
        self.tokenizer = load_tokenizer(folder)
        self.runtime = Runtime(threads=1)
        self.model = load_model(folder, runtime=self.runtime)

    def open(self, executor: type[ModelExecutor] = ModelExecutor, **options: Any) -> TextEngine:
        options = {"cache_bytes": 64 << 20, "max_model_len": 1024} | options
        engine = Engine(executor(self.model, self.runtime), Sampler(self.runtime), **options)
        return TextEngine(engine, self.tokenizer, model=self.model.spec, runtime=self.runtime)

    @cached_property
    def asked(self) -> list[Asked]:
        """A chat of four turns, with right answers as its history, and another client's question."""
        document, text = make_document(SECTION), self.open()
        system = {"role": "system", "content": document.system}
        chat, found = [system], []
        for question in document.questions:
            chat = [*chat, {"role": "user", "content": question.text}]
            found.append((question, chat))
            chat = [*chat, {"role": "assistant", "content": question.answer}]
        found.append((document.other, [system, {"role": "user", "content": document.other.text}]))
        made = []
        for number, (question, messages) in enumerate(found):
            prompt = text.render_chat(messages)
            request = EngineRequest(
                request_id=str(number),
                prompt_token_ids=tuple(prompt.token_ids),
                params=SamplingParams(temperature=0.0, max_tokens=ANSWER, logprobs=20),
                eos_token_ids=text.eos_token_ids,
                turn_positions=prompt.turn_positions,
            )
            made.append(Asked(question, request))
        return made

    @cached_property
    def cold(self) -> Answers:
        """The oracle: each alone, nothing cached, one token a step."""
        text = self.open(enable_prefix_caching=False, max_num_batched_tokens=1, max_num_seqs=1)
        return one_by_one(text, self.asked)

    def check(self, answers: Answers) -> None:
        assert answers
        for name, got in answers.items():
            assert got.digest() == self.cold[name].digest(), self.asked[int(name)].question.text
            assert got.outputs[0].text == self.cold[name].outputs[0].text


def together(text: TextEngine, asked: list[Asked]) -> Answers:
    builders = {}
    for one in asked:
        text.add(one.request)
        builders[one.request.request_id] = OutputBuilder(one.request, None, text.token_text)
    while text.has_work():
        for delta in text.step():
            assert delta.error is None
            builders[delta.request_id].add(delta)
        text.engine.check_integrity()
    return {name: builder.output for name, builder in builders.items()}


def one_by_one(text: TextEngine, asked: list[Asked]) -> Answers:
    answers: Answers = {}
    for one in asked:
        answers |= together(text, [one])
    return answers


@pytest.fixture(scope="module", params=["random", "bundled"])
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Model:
    if request.param == "random":
        return Model(random_twin(tmp_path_factory.mktemp("twin") / "model"))
    return bundled_model()


def bundled_model() -> Model:
    if not (bundled.path() / "model.safetensors").exists():
        pytest.skip("the bundled model's weights are not in this checkout")
    return Model(bundled.path())


def random_twin(folder: Path) -> Path:
    end = json.loads((bundled.path() / "tokenizer.json").read_text())["added_tokens"]
    ids = {token["content"]: token["id"] for token in end}
    config = Shape().to_config(eos_token_id=ids["<|im_end|>"], pad_token_id=ids["<|endoftext|>"], dtype="bfloat16")
    write_model(folder, config, seed=5, dtype="bfloat16")
    for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
        shutil.copy(bundled.path() / name, folder / name)
    return folder


def test_cold_answers_are_right() -> None:
    model = bundled_model()
    for asked in model.asked:
        answer = model.cold[asked.request.request_id].outputs[0]
        assert answer.finish_reason == "stop"
        assert answer.text.rsplit("</think>", 1)[-1].strip() == asked.question.answer


def test_in_one_chunk(model: Model) -> None:
    model.check(one_by_one(model.open(enable_prefix_caching=False), model.asked))


def test_warm(model: Model) -> None:
    text = model.open()
    first = one_by_one(text, model.asked)
    model.check(first)
    assert [output.num_cached_tokens > 0 for output in first.values()] == [False, True, True, True, True]
    again = one_by_one(text, model.asked)
    model.check(again)
    for asked in model.asked:
        reused = again[asked.request.request_id].num_cached_tokens
        assert reused == len(asked.request.prompt_token_ids) - 1


@pytest.mark.parametrize("budget", [1, 37, 64, 128])
def test_chunked(model: Model, budget: int) -> None:
    text = model.open(max_num_batched_tokens=budget, max_num_seqs=1)
    model.check(one_by_one(text, model.asked[:2] + model.asked[-1:]))
    assert text.engine.steps > len(model.asked[0].request.prompt_token_ids) // budget


@pytest.mark.parametrize("caching", [True, False])
def test_batched(model: Model, caching: bool) -> None:
    text = model.open(max_num_seqs=8, max_num_batched_tokens=100, enable_prefix_caching=caching)
    model.check(together(text, model.asked))


@pytest.mark.parametrize("caching", [True, False])
def test_preempted(model: Model, caching: bool) -> None:
    """Memory for two requests of five, which share nothing: they push each other out."""
    spec = model.model.spec
    pages = -(-max(len(a.request.prompt_token_ids) + ANSWER for a in model.asked) // 16)
    text = model.open(
        cache_bytes=5 * spec.slot_bytes + 2 * pages * spec.page_bytes,
        max_model_len=16 * pages,
        max_num_batched_tokens=128,
        enable_prefix_caching=caching,
    )
    alone = [Asked(a.question, replace(a.request, cache_salt=a.request.request_id)) for a in model.asked]
    model.check(together(text, alone))
    assert text.engine.stats()["preemptions"] > 0


def test_from_disk(model: Model, tmp_path: Path) -> None:
    """Each question to an engine that has nothing in memory, only the files of those that were asked before."""
    reused = []
    for asked in [*model.asked, *model.asked]:
        text = model.open(disk=DiskOptions(path=tmp_path, limit=1 << 30, pace=Always()))
        answers = one_by_one(text, [asked])
        model.check(answers)
        reused.append(answers[asked.request.request_id].num_cached_tokens)
        text.close(60)
        assert text.engine.disk is not None
        assert not set(text.engine.disk.folder.counters) & {"disk_damaged", "disk_stamp", "disk_failed", "disk_orphan"}
    assert [count > 0 for count in reused[: len(model.asked)]] == [False, True, True, True, True]
    assert reused[len(model.asked) :] == [len(asked.request.prompt_token_ids) - 1 for asked in model.asked]


def test_from_memory_and_disk_in_company(model: Model, tmp_path: Path) -> None:
    """A cache in memory of a few marks, so that what is pushed out comes back from disk while others run."""
    spec = model.model.spec
    longest = -(-max(len(a.request.prompt_token_ids) + ANSWER for a in model.asked) // 16)
    text = model.open(
        cache_bytes=8 * spec.slot_bytes + 3 * longest * spec.page_bytes,
        max_model_len=16 * longest,
        max_num_seqs=3,
        disk=DiskOptions(path=tmp_path, limit=1 << 30, pace=Always(), background=False),
    )
    for _ in range(2):
        for salt in ("a", "b", "c"):
            model.check(together(text, [Asked(a.question, replace(a.request, cache_salt=salt)) for a in model.asked]))
            assert text.engine.disk is not None
            text.engine.disk.spill.writer.work()
    assert text.engine.stats()["disk_hits"] > 0
    text.close()


def test_reversed_and_twice_in_company(model: Model) -> None:
    """Who asked before must not matter: the longest chat first, then all others at once."""
    text = model.open(max_num_seqs=4)
    backwards = list(reversed(model.asked))
    model.check(together(text, backwards))
    model.check(together(text, backwards))

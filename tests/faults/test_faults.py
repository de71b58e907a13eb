"""Each planted fault does what it says to an answer, says so, and is out of reach without the unsafe flag."""

from __future__ import annotations

import random

import pytest

from statemark.cli import main
from statemark.demo.stage import Reply, ask
from statemark.engine.params import SamplingParams
from statemark.engine.request import EngineRequest
from statemark.errors import ConfigurationError
from statemark.faults import FAULTS, named_fault
from statemark.server.faulty import FaultyModel
from statemark.server.loaded import LoadedModel

OPTIONS = {"num_threads": 1, "cache_memory": "64MiB", "max_num_seqs": 8, "max_num_batched_tokens": 64}
DRAW = random.Random(7)
SHARED = [DRAW.randrange(300) for _ in range(900)]
A = SHARED + [DRAW.randrange(300) for _ in range(77)]
B = SHARED + [DRAW.randrange(300) for _ in range(23)]


class Asker:
    def __init__(self, model: LoadedModel) -> None:
        self.model, self.count = model, 0

    def request(self, prompt: list[int], salt: str) -> EngineRequest:
        self.count += 1
        params = SamplingParams(temperature=0.0, max_tokens=3, logprobs=20, seed=0)
        return EngineRequest(
            request_id=f"r{self.count}", prompt_token_ids=tuple(prompt), params=params, cache_salt=salt
        )

    def __call__(self, prompt: list[int], salt: str) -> Reply:
        if isinstance(self.model, FaultyModel) and self.model.fault.ignores_salts:
            request = self.request(prompt, "")
        else:
            request = self.request(prompt, salt)
        return ask(self.model.text, request)


@pytest.fixture(scope="module")
def right(folder) -> dict[str, str]:
    model = LoadedModel.load(folder, **OPTIONS)
    answers = {"B": Asker(model)(B, "cold").digest, "A": Asker(model)(A, "cold").digest}
    asker = Asker(model)
    asker(A, "x")
    assert asker(B, "x").digest == asker(B, "x").digest == answers["B"]
    return answers


def planted(folder, name: str) -> FaultyModel:
    return FaultyModel.load_with(named_fault(name), folder, **OPTIONS)


@pytest.mark.parametrize(
    "name",
    ["wrong-position", "other-request", "one-token-late", "state-reset", "conv-dropped", "page-head", "saved-rounding"],
)
def test_hits_are_wrong_and_cold_answers_right(folder, right, name):
    ask = Asker(planted(folder, name))
    assert ask(B, "cold").digest == right["B"]
    ask(A, "x")
    hit = ask(B, "x")
    assert hit.cached >= 700
    again = ask(B, "x")
    assert again.cached == len(B) - 1
    assert {hit.digest, again.digest} != {right["B"]}


def test_without_the_fault_the_same_model_is_right(folder, right):
    ask = Asker(FaultyModel.load_with(FAULTS["salts-ignored"], folder, **OPTIONS))
    assert ask(B, "one").digest == right["B"]
    second = ask(B, "two")
    assert (second.cached, second.digest) == (len(B) - 1, right["B"])


def test_a_slot_that_is_not_cleared_spoils_the_second_request(folder, right):
    ask = Asker(planted(folder, "slot-not-cleared"))
    digests = [ask(B, f"salt {i}").digest for i in range(3)]
    assert any(d != right["B"] for d in digests)


def test_mates_and_chunks_move_the_numbers_of_cold_requests(folder, right):
    assert Asker(planted(folder, "batch-mix"))(B, "x").digest == right["B"]
    assert Asker(planted(folder, "chunk-rounding"))(B, "x").digest != right["B"]


def test_it_is_loud(folder):
    model = planted(folder, "state-reset")
    assert model.fingerprint.endswith("-FAULT-state-reset")
    assert any("UNSAFE" in line for line in model.report())
    assert "UNSAFE" in model.notices[0]


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--fault", "state-reset"], "--unsafe-faults"),
        (["--fault", "nonsense", "--unsafe-faults"], "there is no fault"),
        (["--unsafe-faults"], "without a fault"),
    ],
)
def test_the_flag_alone_is_refused(folder, capsys, flags, words):
    assert main(["serve", "--model", str(folder), "--port", "0", *flags]) == 2
    assert words in capsys.readouterr().err


def test_an_unknown_name_is_an_error():
    with pytest.raises(ConfigurationError, match="nothing-of-the-kind"):
        named_fault("nothing-of-the-kind")

"""Whole probes: on a stand-in whose flaws are known to the token, and on real servers with planted faults."""

from __future__ import annotations

import asyncio
import hashlib
import json
from pathlib import Path

import pytest

from statemark.client import Session
from statemark.errors import ConfigurationError, ServerError
from statemark.faults import FAULTS
from statemark.probe.bench import Bench, Cost
from statemark.probe.page import draw_page
from statemark.probe.plan import Options, boundaries, duration, estimate
from statemark.probe.report import figures, lines
from statemark.probe.run import Memory, Probe, Result
from statemark.server.faulty import FaultyModel
from statemark.server.loaded import LoadedModel
from tests.client.stand_in import StandIn
from tests.server.live_server import running
from tests.tiny_model import write_tiny

OPTIONS = Options(limit=640, boundaries=2, mates=False)


async def _probe(
    session: Session, options: Options, path: Path | None = None, own: str = "", run: str = "test"
) -> Result:
    async with session:
        await session.find()
        bench = Bench(session, max_tokens=options.max_tokens, beyond_eos=options.beyond_eos, run=run)
        memory = Memory(path, {"head": 1, **options.figures()})
        try:
            return await Probe(bench, options, await estimate(options), own=own, memory=memory).run()
        finally:
            memory.close()


def probe(stand_in: StandIn, options: Options = OPTIONS, path: Path | None = None, own: str = "") -> Result:
    return asyncio.run(_probe(Session("http://server", transport=stand_in.transport()), options, path, own))


@pytest.mark.parametrize("make", ["vllm", "sglang", "llamacpp", "statemark"])
@pytest.mark.parametrize("block", [1, 64, 100])
def test_a_right_server_of_any_make_is_exact_and_its_block_is_found(make, block):
    result = probe(StandIn(make=make, block=block))
    assert (result.verdict.kind, result.grid) == ("exact", block)


def test_cached_tokens_may_come_from_metrics():
    result = probe(StandIn(usage=False))
    assert (result.verdict.kind, result.grid) == ("exact", 64)


def test_without_either_the_probe_says_nothing():
    result = probe(StandIn(usage=False, metrics=False))
    assert result.verdict.kind == "invalid"
    assert any("cached tokens" in note for note in result.notes)


def test_a_cache_that_never_hits_is_invalid_and_not_clean():
    result = probe(StandIn(block=10_000))
    assert (result.verdict.kind, result.grid) == ("invalid", None)


def test_a_cache_that_keeps_only_what_comes_twice_is_told_and_judged():
    """What a real vLLM does with some lengths: the first re-ask misses, later ones hit."""
    result = probe(StandIn(from_visit=3), Options(limit=640, boundaries=0, mates=False))
    assert any("reused nothing at first" in note for note in result.notes)
    assert all(o.valid for o in result.observations if o.cell == "again")


def test_salts_that_separate_nothing():
    result = probe(StandIn(salts=False))
    assert (result.verdict.kind, result.verdict.cells) == ("contaminated", ("salt",))


def test_an_unknown_make_can_not_be_isolated():
    assert probe(StandIn(make="other")).verdict.kind == "invalid"


def test_the_boundary_from_which_on_another_writer_shows():
    """Whose request wrote the block decides the answer, from two blocks on: found by bisection, to the block."""

    def flaw(prompt, hit, writer):
        return sum(writer) % 97 / 5000 if hit >= 128 and writer[: len(prompt)] != prompt[: len(writer)] else 0.0

    result = probe(StandIn(flaw=flaw), Options(limit=1200, boundaries=0, mates=False))
    assert result.verdict.kind == "contaminated"
    assert result.verdict.cells[0] in ("writer", "turns")
    assert result.boundary == {"cell": "boundary", "right_up_to": 64, "wrong_from": 128, "blocks": 2.0, "block": 64}


def test_a_small_shift_that_only_the_writers_length_decides_is_chunk_shape():
    """Where the writer's prompt was cut, not what it said: writers of equal lengths lead to one answer."""

    def flaw(prompt, hit, writer):
        return len(writer) % 97 / 5000 if hit >= 128 and writer[: len(prompt)] != prompt[: len(writer)] else 0.0

    stand_in = StandIn(flaw=flaw)
    result = probe(stand_in, Options(limit=1200, boundaries=2, mates=False))
    assert (result.verdict.kind, result.boundary) == ("drift", None), result.verdict.reasons
    assert "twin" in result.verdict.cells
    assert "chunk shape" in result.verdict.reasons[-1]


def test_a_stale_state_shows_in_own_hits_too():
    result = probe(StandIn(flaw=lambda prompt, hit, writer: 0.9 * bool(hit)))
    assert result.verdict.kind == "contaminated"
    assert "again" in result.verdict.cells
    assert result.boundary["wrong_from"] <= 64


def test_noise_of_the_arithmetic_is_drift():
    def flaw(prompt, hit, writer):  # every answer is a little off, by how it was computed
        flaw.calls += 1
        return 1e-4 * (flaw.calls % 3)

    flaw.calls = 0
    result = probe(StandIn(flaw=flaw))
    assert result.verdict.kind == "drift"
    assert 1e-4 < result.verdict.control < 3e-4
    assert result.boundary is None


OWN = "".join(hashlib.sha256(bytes([i])).hexdigest() for i in range(12))


def test_an_operators_document():
    stand_in = StandIn(make="vllm")
    assert probe(stand_in, own=OWN).verdict.kind == "exact"
    assert any(body["prompt"][:99] == [ord(c) for c in OWN[:99]] for body in stand_in.bodies)


def test_an_operators_document_is_met_once_where_no_salts_keep_cells_apart():
    stand_in = StandIn(make="llamacpp")
    result = probe(stand_in, own=OWN)
    assert result.verdict.kind == "exact"
    wanted = [ord(c) for c in OWN[:99]]
    heads = {tuple(body["prompt"][:16]) for body in stand_in.bodies if body["prompt"][16:115] == wanted}
    assert len(heads) > 10
    assert not any(body["prompt"][:99] == wanted for body in stand_in.bodies)


@pytest.mark.parametrize("make", ["vllm", "sglang"])
def test_a_server_that_tokenizes_for_nobody_is_sent_words(make):
    stand_in = StandIn(make=make, tokenizes=False, context=1 << 20)
    result = probe(stand_in)
    assert (result.verdict.kind, result.abilities["documents"]) == ("exact", "words")
    assert all(isinstance(body["prompt"], str) for body in stand_in.bodies)
    assert any("count words" in note for note in result.notes)


@pytest.mark.parametrize("make", ["vllm", "llamacpp"])
def test_a_second_probe_meets_nothing_of_the_first(make):
    async def go() -> list[Result]:
        stand_in = StandIn(make=make)
        found = []
        for run in ("one", "two"):
            session = Session("http://server", transport=stand_in.transport())
            found.append(await _probe(session, OPTIONS, run=run))
        return found

    first, second = asyncio.run(go())
    assert (first.verdict.kind, second.verdict.kind) == ("exact", "exact")
    assert [o.cached for o in second.observations] == [o.cached for o in first.observations]


@pytest.mark.parametrize(
    ("stand_in", "abilities"),
    [
        (StandIn(make="vllm"), ("cache_salt", "usage", "told")),
        (StandIn(make="sglang", usage=False), ("cache_salt", "metrics", "no")),
        (StandIn(make="llamacpp"), ("cache_prompt: false", "usage", "told")),
        (StandIn(make="other", usage=False, metrics=False), ("no way is known", "nowhere", "no")),
    ],
)
def test_it_says_what_it_can_do_with_a_server(stand_in, abilities):
    result = probe(stand_in)
    assert tuple(result.abilities[key] for key in ("cold answers", "cached tokens", "ids of answers")) == abilities
    assert abilities[0] in "\n".join(lines(result))
    assert abilities[0] in draw_page(result)


def test_no_log_probabilities():
    with pytest.raises(ServerError, match="gives no log-probabilities"):
        probe(StandIn(logprobs=False))


def test_resume_measures_only_what_is_missing(tmp_path):
    path = tmp_path / "probe.jsonl"
    whole = StandIn()
    first = probe(whole, path=path)
    kept = path.read_text().splitlines()
    path.write_text("\n".join([*kept[:5], kept[5][:20]]) + "\n")  # interrupted in the sixth line
    rest = StandIn()
    second = probe(rest, path=path)
    assert second.verdict == first.verdict
    assert len(rest.bodies) < len(whole.bodies)
    third = StandIn()
    probe(third, path=path)
    assert len(third.bodies) < 12


def test_resume_refuses_the_record_of_another_probe(tmp_path):
    path = tmp_path / "probe.jsonl"
    probe(StandIn(), path=path)
    with pytest.raises(ConfigurationError, match="no record of a probe"):
        probe(StandIn(), Options(limit=700, mates=False), path)


def test_estimate_and_actual_cost():
    result = probe(StandIn())
    assert result.cost.requests == pytest.approx(result.expected.requests, abs=6)
    assert result.cost.prompt_tokens == pytest.approx(result.expected.prompt_tokens, rel=0.35)
    assert 0 < result.expected.cached_tokens < result.expected.prompt_tokens


def test_estimated_time_is_that_of_computed_tokens_and_of_requests():
    expected = Cost(requests=10, prompt_tokens=7000, cached_tokens=3000)
    # 1 ms a token and 50 ms a request.
    assert duration(expected, 1000, 900, 1.05, 0.15) == pytest.approx(10 * 0.15 + 4000 * 0.001)
    assert duration(expected, 1000, 0, 1.05, 1.05) == pytest.approx(4000 * 0.00105)


def test_both_sides_of_every_boundary():
    assert boundaries(100, Options(limit=400, boundaries=2)) == [100, 200, 300]
    assert boundaries(100, Options(limit=400, boundaries=0)) == []
    stand_in = StandIn(block=100)
    result = probe(stand_in, Options(limit=400, boundaries=1, mates=False))
    ends = [sum(o.prompt > block for block in (100,)) for o in result.observations if o.cell == "boundary"]
    assert {0, 1} <= set(ends)
    assert {99, 100, 101} <= {o.shared for o in result.observations}


def test_reports_hold_every_request_and_no_text():
    result = probe(StandIn(flaw=lambda prompt, hit, writer: 0.9 * bool(hit)))
    data = json.loads(json.dumps(figures(result)))
    assert data["verdict"] == "contaminated"
    assert len(data["observations"]) == len(result.observations)
    assert "CONTAMINATED" in "\n".join(lines(result))
    page = draw_page(result)
    assert page == draw_page(result)
    assert page.count("<rect") >= len(result.observations)
    assert "http-equiv" not in page
    assert "src=" not in page
    assert "token_id:" not in page + json.dumps(data)


# --- real servers -----------------------------------------------------------------------------------------------

ENGINE = {"num_threads": 1, "cache_memory": "128MiB", "max_num_seqs": 8, "max_num_batched_tokens": 256}
LIVE = Options(limit=512, boundaries=1)
# What each planted fault is called, and a cell that has to show it.
EXPECTED = {
    "wrong-position": ("contaminated", "again"),
    "other-request": ("contaminated", "again"),
    "one-token-late": ("contaminated", "again"),
    "state-reset": ("contaminated", "again"),
    "conv-dropped": ("contaminated", "again"),
    "page-head": ("contaminated", "again"),
    "slot-not-cleared": ("contaminated", None),
    "salts-ignored": ("contaminated", "salt"),
    "batch-mix": ("drift", "mates"),
    "chunk-rounding": ("drift", "mates"),
    "saved-rounding": ("drift", "again"),
}


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny(tmp_path_factory.mktemp("probed") / "tiny")


def live(load, options: Options = LIVE) -> Result:
    with running(load) as found:
        return asyncio.run(_probe(Session(found.url), options))


def test_the_healthy_server_is_exact(folder):
    result = live(lambda: LoadedModel.load(folder, **ENGINE), Options(limit=320, boundaries=1))
    assert result.verdict.kind == "exact", result.verdict.reasons
    assert result.grid == 1
    assert result.scale.edit(27) > 0.1
    # Also where nothing is kept of a prefix before a second request leaves it: then there are more writers.
    assert all(o.cached for o in result.observations if o.cell in ("writer", "boundary"))


def test_every_fault_is_expected_to_be_named():
    assert set(EXPECTED) == set(FAULTS)


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(EXPECTED))
def test_the_probe_names_every_planted_fault(folder, name):
    result = live(lambda: FaultyModel.load_with(FAULTS[name], folder, **ENGINE))
    kind, cell = EXPECTED[name]
    assert result.verdict.kind == kind, result.verdict.reasons
    assert cell is None or cell in result.verdict.cells

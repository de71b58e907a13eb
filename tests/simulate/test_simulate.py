"""The simulator against the oracle and against what real servers reused; traces, costs, pages and the command."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from statemark.align import Job as OracleJob
from statemark.align import Prompt, Role, World, groups_of, make_rule, make_setup
from statemark.align.oracle import Limits as OracleLimits
from statemark.cli.simulate import command
from statemark.errors import ConfigurationError
from statemark.replay.records import Record, record_line
from statemark.simulate.align_backend import AlignBackend
from statemark.simulate.cost import Cost, fit_cost, parse_cost
from statemark.simulate.formats import read_trace
from statemark.simulate.pool import Pool
from statemark.simulate.scenario import Load, simulate
from statemark.simulate.server import Limits, Outcome, Server
from statemark.simulate.workload import Names, Request, common_prefix
from tests.align import tiny_models

MODEL = str(Path(__file__).parents[2] / "docs" / "align" / "qwen3-next")
WAVE = 1e6


def write(path: Path, lines: list[Any]) -> Path:
    path.write_text("".join((line if isinstance(line, str) else json.dumps(line)) + "\n" for line in lines))
    return path


def setup(budget: int = 2048, *flags: str) -> Any:
    return make_setup([MODEL, "--max-num-batched-tokens", str(budget), *flags])


def waves(seed: int, count: int = 60, largest: int = 6) -> list[tuple[int, list[tuple[str, int]], int]]:
    """(wave, parts, output): new prompts, repeats, extensions and siblings with ends around block boundaries."""
    draw = random.Random(seed)
    asked: list[tuple[int, list[tuple[str, int]], int]] = []
    wave = 0
    while len(asked) < count:
        earlier = [parts for w, parts, _ in asked if w < wave]
        for _ in range(draw.randrange(1, largest + 1)):
            own = (f"own {len(asked)}", draw.choice([draw.randrange(1, 3000), 544 * draw.randrange(1, 6)]))
            before = draw.choice(earlier) if earlier and draw.random() < 0.8 else [("head", draw.randrange(1, 2500))]
            kind = draw.random()
            parts = list(before) if kind < 0.3 else [*before[:1], own] if kind < 0.6 else [*before, own]
            if sum(n for _, n in parts) > 9000:
                parts = parts[:1]
            asked.append((wave, parts, draw.randrange(1, 600)))
        wave += 1
    return asked


def requests_of(asked: list[tuple[int, list[tuple[str, int]], int]]) -> list[Request]:
    names = Names()
    made = []
    for number, (wave, parts, output) in enumerate(asked):
        nodes, ends = names.spans(parts)
        made.append(Request(number, wave * WAVE, nodes, ends[-1], output, names.fresh(), ends=ends))
    return made


def simulated(machine: Any, rule: str, asked: Any, requests: int, blocks: int | None = None) -> Outcome:
    backend = AlignBackend(machine.geometry, machine.frame, make_rule(rule, machine.frame), blocks)
    limits = Limits(step=machine.budget.scheduled, requests=requests)
    return Server(backend, Cost(), limits).run(requests_of(asked))


@pytest.mark.parametrize("rule", ["vllm-0.32", "exact", "fast"])
@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize(("budget", "flags"), [(2048, []), (600, []), (8192, ["--prefix-match-unit", "32"])])
def test_hits_chunks_and_steps_are_the_oracles(rule: str, seed: int, budget: int, flags: list[str]) -> None:
    """Requests that run beside each other, in waves; the oracle takes every step by itself, the server many at once."""
    machine, asked = setup(budget, *flags, "--max-num-seqs", "5"), waves(seed)
    outcome = simulated(machine, rule, asked, requests=5)
    world = World(machine.frame, groups_of(machine.geometry), make_rule(rule, machine.frame), OracleLimits(requests=5))
    hits: list[int] = []
    jobs = []
    for wave in range(asked[-1][0] + 1):
        for number, (_, parts, output) in enumerate(asked):
            if asked[number][0] == wave:
                jobs.append(world.add(OracleJob(f"r{number}", Prompt(parts), outputs=output)))
        world.run()
    hits = [job.hits[0] for job in jobs]
    assert [outcome.hits[n] for n in range(len(asked))] == hits
    assert outcome.steps == sum(bool(step.chunks) for step in world.steps)
    assert outcome.computed == sum(len(job.prompt) - job.hits[0] for job in jobs)
    assert sum(hits) > 0


@pytest.mark.parametrize("rule", ["vllm-0.32", "fast"])
def test_a_large_pool_changes_nothing_and_a_small_one_loses_hits(rule: str) -> None:
    machine, asked = setup(2048, "--max-num-seqs", "5"), waves(9)
    free, large, small = (simulated(machine, rule, asked, 5, blocks) for blocks in (None, 20_000, 120))
    assert free.hits == large.hits
    assert free.steps == large.steps
    assert len(small.whole) == len(asked)
    assert sum(small.hits.values()) < sum(free.hits.values())


def test_blocks_are_all_free_in_the_end() -> None:
    machine = setup(2048, "--max-num-seqs", "5")
    backend = AlignBackend(machine.geometry, machine.frame, make_rule("fast", machine.frame), 150)
    asked = waves(3)
    outcome = Server(backend, Cost(), Limits(step=2048, requests=5)).run(requests_of(asked))
    assert backend.pool is not None
    assert backend.pool.free_blocks == 149
    assert outcome.steps > 0
    assert backend.evicted > 0


def test_a_ring_takes_a_block_of_every_running_request_and_gives_it_back(tmp_path: Path) -> None:
    config = tiny_models.qwen3_5(model_type="qwen4_exp_text", architectures=["Qwen4ExpForCausalLM"])
    config |= {"indexer_n_heads": 4, "indexer_compress_ratio": 4}
    (tmp_path / "config.json").write_text(json.dumps(config))
    machine = make_setup([str(tmp_path), "--max-num-batched-tokens", "2048"])
    assert sum(g.copies for g in machine.geometry.groups if g.role is Role.RING) == 1
    asked = [(0, [(f"p{n}", 100)], 5) for n in range(3)]
    each = sum(g.copies for g in machine.geometry.groups)  # a block of every group
    for blocks, at_once in ((1 + 3 * each, 3), (3 * each, 2)):
        backend = AlignBackend(machine.geometry, machine.frame, make_rule("vllm-0.32", machine.frame), blocks)
        outcome = Server(backend, Cost(), Limits(step=2048, requests=5)).run(requests_of(asked))
        assert [outcome.ttft[n] for n in range(3)].count(outcome.ttft[0]) == at_once
        assert backend.pool is not None
        assert backend.pool.free_blocks == blocks - 1


def test_a_prompt_that_never_fits_is_counted_and_the_rest_runs() -> None:
    machine = setup(2048, "--max-num-seqs", "5")
    asked = [(0, [("long", 30_000)], 5), (1, [("short", 500)], 5)]
    outcome = simulated(machine, "exact", asked, 5, blocks=40)
    assert outcome.stuck == 1
    assert set(outcome.whole) == {1}


def test_wrong_states_are_counted_where_the_grid_is_wrong() -> None:
    drafter = {"method": "dflash", "model": str(Path(MODEL).parent / "drafter-wide"), "num_speculative_tokens": 3}
    drafter |= {"attention_backend": "FLASHINFER", "disable_eagle_block_drop": True}
    machine = setup(2048, "--speculative-config", json.dumps(drafter), "--max-num-seqs", "5")
    trace = read_trace_of([{"at": i, "parts": [["a", 5000]], "output": 2} for i in range(3)])
    load = Load(together=1)
    stock, _ = simulate(trace, machine, "vllm-0.32", 2048, Cost(), load)
    ours, _ = simulate(trace, machine, "fast", 2048, Cost(), load)
    assert stock.wrong > 0
    assert ours.wrong == 0


def read_trace_of(lines: list[Any]) -> Any:
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        return read_trace(write(Path(folder) / "t.jsonl", lines))


# --- the pool -----------------------------------------------------------------------------------------------------


def test_cached_blocks_are_lost_oldest_first_and_unhashed_ones_are_used_before() -> None:
    lost: list[Any] = []
    pool = Pool(6, lost.append)
    a, b, c = pool.take(3)
    pool.bind(a, (0, "a"))
    pool.bind(b, (0, "b"))
    pool.free([b, c, a])
    assert pool.take(1) == [c]  # without a hash: before those that were never used
    assert pool.take(2) == [4, 5]
    assert pool.take(1) == [b]
    assert lost == [(0, "b")]
    pool.touch([a])
    assert pool.free_blocks == 0


# --- traces -------------------------------------------------------------------------------------------------------

GOOD = {"timestamp": 0, "input_length": 600, "output_length": 3, "hash_ids": [4, 5]}


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("{", "no JSON"),
        ({**GOOD, "hash_ids": [4]}, "takes 2 hash_ids"),
        ({**GOOD, "input_length": -1}, "input_length"),
        ({"timestamp": 0, "hash_ids": [1]}, "'input_length' is missing"),
        ("[1]", "not a JSON object"),
        ({**GOOD, "timestamp": "x"}, "timestamp"),
    ],
)
def test_a_broken_line_is_named_and_can_be_passed_over(tmp_path: Path, line: Any, words: str) -> None:
    path = write(tmp_path / "t.jsonl", [GOOD, line, {**GOOD, "timestamp": 2000}])
    with pytest.raises(ConfigurationError, match=r"t\.jsonl:2: ") as caught:
        read_trace(path)
    assert words in caught.value.message
    trace = read_trace(path, skip_bad=True)
    assert [r.at for r in trace.requests] == [0.0, 2.0]
    assert len(trace.bad) == 1


def test_an_unknown_field_of_our_own_format_is_an_error(tmp_path: Path) -> None:
    path = write(tmp_path / "t.jsonl", [{"at": 0, "parts": [["a", 5]], "output": 1, "promt": 3}])
    with pytest.raises(ConfigurationError, match=r":1: unknown field 'promt'"):
        read_trace(path)


def test_prefixes_of_our_own_format_are_shared_by_name(tmp_path: Path) -> None:
    lines = [
        {"at": 0, "parts": [["a", 100], ["b", 50]], "output": 10, "answer": "said"},
        {"at": 1, "parts": [["a", 100], ["b", 50], ["said", 10], ["c", 5]], "output": 1},
        {"at": 2, "parts": [["a", 90], ["b", 50]], "output": 1},
    ]
    first, second, third = read_trace(write(tmp_path / "t.jsonl", lines)).requests
    assert common_prefix(first, 160, second, 165) == 160
    assert common_prefix(first, 150, third, 140) == 90


def test_mooncakes_grid_decides_what_is_shared(tmp_path: Path) -> None:
    """A cache that keeps every boundary hits whole blocks of its grid, and leaves one token to compute."""
    lines = [
        {"timestamp": i, "input_length": 2600, "output_length": 1, "hash_ids": [1, 2, 3, 10 + i, 20 + i, 30 + i]}
        for i in range(3)
    ]
    trace = read_trace(write(tmp_path / "t.jsonl", lines))
    machine = setup(2048, "--prefix-cache-retention-interval", "None")
    result, outcome = simulate(trace, machine, "exact", 2048, Cost(), Load(together=1))
    assert [outcome.hits[n] for n in range(3)] == [0, 1088, 1088]
    assert result.requests == 3


# --- costs --------------------------------------------------------------------------------------------------------


def test_a_cost_is_found_again_from_times_that_it_made(tmp_path: Path) -> None:
    cost = Cost(0.02, 1e-4, 0.003, 1e-8)
    draw = random.Random(1)
    lines = []
    for _ in range(40):
        prompt, output = draw.randrange(100, 9000), draw.randrange(2, 300)
        cached = draw.randrange(0, prompt)
        new = prompt - cached
        first = cost.step * -(-new // 2048) + cost.token * new + cost.context * new * (prompt + cached) / 2
        rest = (output - 1) * cost.seconds(1, 1, prompt + output / 2)
        lines.append({"prompt": prompt, "cached": cached, "output": output, "ttft": first, "e2e": first + rest})
    fit = fit_cost(write(tmp_path / "m.jsonl", lines), 2048)
    assert fit.error < 1e-6
    for got, right in zip(vars(fit.cost).values(), vars(cost).values(), strict=True):
        if right != cost.request and right != cost.step:  # these two are only told apart by the prompts' steps
            assert got == pytest.approx(right, rel=1e-3)


def test_a_cost_is_fitted_to_what_a_replay_wrote(tmp_path: Path) -> None:
    """Its head, its warm-up and its errors are no measurements."""
    draw = random.Random(2)
    plain, replayed = [], [json.dumps({"head": {"trace": "t"}})]
    for number in range(12):
        values = {"prompt": draw.randrange(100, 900), "cached": draw.randrange(90), "output": 5}
        first = 0.01 + 1e-4 * (values["prompt"] - values["cached"])
        plain.append(values | {"ttft": first, "e2e": first + 0.08})
        arrivals = [first, *(first + 0.02 * (i + 1) for i in range(4))]
        record = Record(
            target="t", round=0, session=f"s{number}", turn=0, at=0.0, arrivals=arrivals, seconds=9.0, **values
        )
        replayed.append(record_line(record))
    for odd in ({"error": "timeout"}, {"warm_up": True}):
        record = Record(target="t", round=0, session="x", turn=0, at=0.0, prompt=5, arrivals=[9.0], cached=0, **odd)  # type: ignore[arg-type]
        replayed.append(record_line(record))
    one = fit_cost(write(tmp_path / "plain.jsonl", plain), 2048)
    other = fit_cost(write(tmp_path / "replay.jsonl", [line.strip() for line in replayed]), 2048)
    assert other.measured == one.measured == 24
    for name in ("step", "token", "request", "context"):
        assert getattr(other.cost, name) == pytest.approx(getattr(one.cost, name), rel=1e-4, abs=1e-9)
    silent = record_line(Record(target="t", round=0, session="x", turn=0, at=0.0, prompt=5, arrivals=[9.0]))
    with pytest.raises(ConfigurationError, match=r"m\.jsonl:1: .*how many tokens"):
        fit_cost(write(tmp_path / "m.jsonl", [silent.strip()]), 2048)


def test_costs_given_by_hand() -> None:
    assert parse_cost("step=0.5,token=1e-3") == Cost(0.5, 1e-3, 0, 0)
    for text in ("step=x", "stp=1", "step=-1", "step=0"):
        with pytest.raises(ConfigurationError):
            parse_cost(text)


# --- the command --------------------------------------------------------------------------------------------------


def test_the_command_prints_a_table_one_object_and_a_page_of_its_own(tmp_path: Path) -> None:
    path = write(tmp_path / "t.jsonl", [{**GOOD, "timestamp": i * 100, "output_length": 20} for i in range(12)])
    page = tmp_path / "page.html"
    words = [str(path), "--model", MODEL, "--budget", "1024", "--budget", "2048", "--html", str(page)]
    done = CliRunner().invoke(command, words, catch_exceptions=False)
    assert done.exit_code == 0
    for name in ("vllm-0.32 @ 1024", "exact @ 2048", "fast @ 2048", "statemark @ 1024", "llama.cpp @ 2048"):
        assert name in done.stdout
    text = page.read_text()
    assert "<svg" in text
    assert not any(word in text for word in ("http:", "https:", "<script", "<link", "@import", "url("))
    found = json.loads(CliRunner().invoke(command, [*words, "--json"], catch_exceptions=False).stdout)
    assert {(r["rule"], r["budget"]) for r in found["results"]} == {
        (rule, budget) for rule in ("vllm-0.32", "exact", "fast", "statemark", "llama.cpp") for budget in (1024, 2048)
    }
    assert all(r["ttft"]["p50"] > 0 and r["per_p90"] > 0 for r in found["results"])


def test_a_long_trace_says_what_the_engines_own_cache_costs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("statemark.cli.simulate._ENGINE_SECONDS", 1.0)
    path = write(tmp_path / "t.jsonl", [GOOD])
    words = [str(path), "--model", MODEL, "--num-gpu-blocks-override", "4000"]
    said = CliRunner().invoke(command, [*words, "--rule", "statemark"], catch_exceptions=False)
    assert "runs the real cache: about 10 minutes" in said.stderr
    assert "minutes" not in CliRunner().invoke(command, [*words, "--rule", "exact"], catch_exceptions=False).stderr
    without = CliRunner().invoke(command, [*words[:3], "--rule", "statemark"], catch_exceptions=False)
    assert "minutes" not in without.stderr


def test_what_a_memory_limit_is_not_modelled_for_is_named_with_the_rule_and_the_flags() -> None:
    fine = setup(2048, "--prefix-match-unit", "32")
    with pytest.raises(ConfigurationError, match=r"exact with a memory limit: hits of 32 .*blocks of 544") as caught:
        AlignBackend(fine.geometry, fine.frame, make_rule("exact", fine.frame), 4000)
    assert "--prefix-match-unit" in str(caught.value.hint)
    drafter = {"method": "dflash", "model": str(Path(MODEL).parent / "drafter-wide"), "num_speculative_tokens": 3}
    drafter |= {"attention_backend": "FLASHINFER", "disable_eagle_block_drop": True}
    window = setup(2048, "--speculative-config", json.dumps(drafter))
    with pytest.raises(ConfigurationError, match=r"a window of \d+ tokens") as caught:
        AlignBackend(window.geometry, window.frame, make_rule("fast", window.frame), 4000)
    assert "--num-gpu-blocks-override" in str(caught.value.hint)


def test_a_small_budget_lowers_the_default_number_of_requests_as_vllm_does() -> None:
    trace = read_trace_of([{"at": 0, "parts": [["a", 100]], "output": 2}])
    result, _ = simulate(trace, setup(2048), "vllm-0.32", 64, Cost(), Load())
    assert result.steps > 0
    with pytest.raises(ConfigurationError, match=r"64 is below max_num_seqs \(100\)"):
        simulate(trace, setup(2048, "--max-num-seqs", "100"), "vllm-0.32", 64, Cost(), Load())

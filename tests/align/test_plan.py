"""Plans: what they hold, how they are drawn, and that equal input gives equal bytes."""

from __future__ import annotations

import xml.etree.ElementTree as ET

import pytest

from statemark.align.frame import uniform_frame
from statemark.align.groups import Role
from statemark.align.oracle import CacheGroup
from statemark.align.picture import MISSING, STALE, chunks, draw, table
from statemark.align.planner import Plan, make_plan, make_prompts
from statemark.align.rules import RULES
from statemark.align.svg import draw_svg
from statemark.errors import ConfigurationError
from tests.align.histories import Server, server


def uniform(block: int, budget: int, **options: int | None) -> Server:
    frame = uniform_frame(block, budget, **options)  # type: ignore[arg-type]
    return Server(frame, (CacheGroup(Role.ATTENTION, block), CacheGroup(Role.STATE, block)))


def plan(machine: Server, *lengths: int, shared: int | None = None, rules: tuple[str, ...] = tuple(RULES)) -> Plan:
    return make_plan(machine.frame, machine.groups, make_prompts(lengths, shared), rules, shared=shared)


WALK = plan(uniform(384, 2048), 5000, 5500)
WRONG = plan(server(1648, 2048, window_page=64), 8240, 8240)


def test_a_plan_holds_chunks_hits_and_states() -> None:
    stock = WALK.rules[0]
    assert (stock.rule, stock.steps, stock.computed) == ("vllm-0.32", 6, 5508)
    first, second = stock.prompts
    assert (first.hit, first.ends, first.kept, first.missing) == (0, (1920, 3840, 4992, 5000), (4992,), ())
    assert (second.hit, second.shared, second.ends, second.kept) == (4992, 5000, (5376, 5500), (5376,))


def test_a_plan_shows_wrong_states_and_who_reads_them() -> None:
    stock = WRONG.rules[0].prompts
    assert stock[0].stale == ((6592, 6144),)
    assert stock[1].read_stale
    for rule in WRONG.rules[1:]:
        assert not any(p.stale or p.read_stale for p in rule.prompts)


def test_a_rule_that_stalls_is_shown_as_such() -> None:
    stalled = plan(uniform(2048, 2048, draft_slots=8), 5000)
    assert [p.done for r in stalled.rules for p in r.prompts] == [False, True, True]
    assert "never finishes" in chunks(stalled)
    assert "then never" in table(stalled)
    assert "never ends" in draw_svg(stalled, "stall")


def test_missing_states_under_an_interval() -> None:
    dense = plan(uniform(384, 2048, retention=None), 5000)
    counts = {r.rule: (len(r.prompts[0].kept), len(r.prompts[0].missing)) for r in dense.rules}
    assert counts == {"vllm-0.32": (3, 10), "exact": (13, 0), "fast": (13, 0)}


def test_shared_prefixes() -> None:
    siblings = plan(uniform(384, 2048), 4000, 4000, 4000, shared=3000, rules=("vllm-0.32",))
    assert [p.hit for p in siblings.rules[0].prompts] == [0, 0, 2688]
    assert [p.shared for p in siblings.rules[0].prompts] == [0, 3000, 3000]


@pytest.mark.parametrize(
    ("lengths", "shared", "message"),
    [((0,), None, "between 1 and"), ((5_000_000,), None, "got 5000000"), ((100, 50), 60, "--shared 60 is longer")],
)
def test_prompts_that_cannot_be_planned(lengths: tuple[int, ...], shared: int | None, message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        make_prompts(lengths, shared)


SNAPSHOT = """\
prompt 1: 5,000 tokens
             '   '  '   '  '   '  '  '   '  '   '  '  '
vllm-0.32  ━━━━━━━━━━━━━━━━┫━━━━━━━━━━━━━━━━┫━━━━━━━━━┫┫
                                                      ●
exact      ━━┫━━━┫━━┫━━━┫━━┫━━━┫━━┫━━┫━━━┫━━┫━━━┫━━┫━━┫┫
                                                      ●
fast       ━━━━━━━━━━━━━━━━━┫━━━━━━━━━━━━━━━━━┫━━━━━━━┫┫
                                                      ●

prompt 2: 5,500 tokens, 5,000 of them shared with prompt 1
             '   '  '   '  '   '  '  '   '  '   '  '  '   '
vllm-0.32  ░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░━━━┫┫
                                                          ●
exact      ░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░━━━┫┫
                                                          ●
fast       ░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░━━━┫┫
                                                          ●

░ from the cache   ━ computed   ┫ chunk end   ' state grid
● state kept   ○ state missing   ✗ state of another position
"""


def test_the_picture() -> None:
    assert draw(WALK, width=60) == SNAPSHOT
    assert max(map(len, SNAPSHOT.splitlines())) <= 60
    assert STALE in draw(WRONG)
    assert MISSING in draw(plan(uniform(384, 2048, retention=None), 5000))


def test_the_table_and_the_chunk_lists() -> None:
    lines = table(WALK).splitlines()
    assert lines[0].split() == ["rule", "prompt", "tokens", "hit", "computed", "chunks", "kept", "missing", "wrong"]
    assert lines[1].split() == ["vllm-0.32", "1", "5,000", "0", "5,000", "4", "1", "0", "0"]
    assert "vllm-0.32, prompt 1: chunks end at 1,920, 3,840, 4,992, 5,000" in chunks(WALK)
    assert "the entry for 6,592 holds the state after 6,144" in chunks(WRONG)
    long = plan(uniform(16, 64), 5000, rules=("exact",))
    assert "... (301 more)" in chunks(long)


def test_the_svg_is_well_formed_and_says_what_it_shows() -> None:
    drawn = draw_svg(WRONG, "a & b <c>")
    root = ET.fromstring(drawn)
    classes = [e.get("class") for e in root.iter() if e.get("class")]
    assert classes.count("stale") == 2 * 1 + 1  # both prompts show the entry, and the legend
    assert classes.count("hit") >= 3
    assert any((t.text or "").startswith("the entry for 6,592") for t in root.iter("{http://www.w3.org/2000/svg}title"))


def test_equal_plans_give_equal_bytes() -> None:
    again = plan(uniform(384, 2048), 5000, 5500)
    assert again == WALK
    assert draw_svg(again, "t") == draw_svg(WALK, "t")
    assert draw(again) + table(again) + chunks(again) == draw(WALK) + table(WALK) + chunks(WALK)


def test_a_very_long_prompt_is_drawn_without_painting_every_boundary() -> None:
    drawn = draw_svg(plan(uniform(16, 65_536), 65_536 * 8, rules=("fast",)), "long")
    assert drawn.count('class="grid"') <= 400

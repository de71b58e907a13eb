"""The public reports of kind lookup that concern where states are kept, by their names and with their numbers.

Where another engine's rule gives a position on its grid, ours is the token itself: reuse is larger, and right.
"""

import pytest

from tests.cache.asking import Asking, join, text


def groups(shared, own, count=8, each=8):
    """`count` groups of prompts, each sharing `shared` tokens within the group, asked in turns."""
    return [join(text(shared, g * 100_000), text(own, 2_000_000 + 1000 * (g * each + i)))
            for i in range(each) for g in range(count)]  # fmt: skip


@pytest.mark.parametrize(("shared", "own"), [(1600, 600), (1500, 700)])
def test_l1_a_shared_head_is_reused_from_the_third_prompt_on_wherever_it_ends(shared, own):
    a = Asking()
    cached = [a.ask(p, check=False) for p in groups(shared, own)]
    assert cached[:8] == [0] * 8
    assert all(shared / 2 <= c <= shared for c in cached[8:16]), "history: the second loses half at most"
    assert cached[16:] == [shared] * 48


def test_l1_with_a_declared_anchor_it_is_reused_from_the_second_on():
    a = Asking()
    cached = [a.ask(p, turns=[1600, 2196], check=False) for p in groups(1600, 600)]
    assert cached[8:] == [1600] * 56


def test_l1_ladder():
    """A = 3,000 and B, C = 5,000 share 2,000: the report's right is 0, 0, 2,000; ours has history for B."""
    a, shared = Asking(), text(2000)
    assert a.ask(join(shared, text(1000, 10_000))) == 0
    assert 1000 <= a.ask(join(shared, text(3000, 20_000))) <= 2000
    assert a.ask(join(shared, text(3000, 30_000))) == 2000


@pytest.mark.parametrize("suffix", [40, 376, 1296])
def test_l4_leaving_a_path_in_its_middle_keeps_a_state_there(suffix):
    """The report's right is 6,464, the page below; a mark lies at any token, so ours is 6,476."""
    a, shared = Asking(), text(6476)
    a.ask(join(shared, text(500, 10_000)))
    assert 3238 <= a.ask(join(shared, text(suffix, 20_000))) <= 6476
    assert (6476, "junction") in a.kinds()
    assert a.ask(join(shared, text(suffix, 30_000))) == 6476


@pytest.mark.parametrize("end", [560, 561, 575])
def test_l8_the_junction_is_exact_to_the_token(end):
    a = Asking()
    cached = [a.ask(join(text(end), text(1946 - end, 10_000 * i)), turns=[1940]) for i in (1, 2, 3)]
    assert cached[2] == end
    assert a.cache.counters["tokens_lost_unmarked"] == end - cached[1]


def test_l14_an_insertion_reuses_the_head_and_claims_nothing_behind_it():
    first, second = text(2048), text(2048, 10_000)
    a = Asking()
    a.ask(join(first, second))
    for i in (1, 2):
        assert a.ask(join(first, text(512, 20_000 * i), second)) == 2048, "a history mark lies there by chance"
    assert a.ask(join(first[:2000], text(512, 90_000), second)) <= 2000
    assert a.ask(join(first[:2000], text(512, 95_000), second)) == 2000
    assert a.ask(join(first, second)) == 4095, "and A with its own continuation is still there"


def test_g5_short_prompts_hit():
    """2,000 prompts of 370 tokens with 369 shared, and shared prefixes of 480: blocks of 528 gave nothing."""
    a = Asking()
    cached = [a.ask(join(text(369), text(1, 5_000 + i)), check=False) for i in range(6)]
    assert cached == [0] + [369] * 5, "replay is at P - 1, which is just there"
    cached = [a.ask(join(text(480, 50_000), text(60, 60_000 + 100 * i))) for i in range(4)]
    assert min(cached[2:]) >= 464, "another mark lies just before the junction, which is then not worth one"


def test_t1_t2_a_turn_mark_before_each_user_message_saves_what_the_template_keeps():
    """Reasoning of past turns is dropped when a user message comes: the prompt parts at the first answer after the
    last user message, and the mark at that message's end is the one to resume at."""
    a = Asking()
    system, user1, user2 = text(300), text(60, 1_000), text(60, 2_000)
    header = text(3, 9_000)
    loop = [join(text(40, 10_000 + 100 * i), text(30, 11_000 + 100 * i)) for i in range(3)]  # reasoning, result
    prompt, turns = join(system, user1, header), [300, 360]
    a.ask(prompt, turns=turns)
    for part in loop:
        prompt = join(prompt, part, header)
        turns.append(len(prompt) - 3)
        assert a.ask(prompt, turns=turns) > 360
    plain = join(system, user1, text(90, 30_000), user2, header)  # answers without reasoning, then a new question
    assert a.ask(plain, turns=[300, 360, 450, 510]) == 360


def test_t3_t4_what_precedes_a_clock_in_the_system_prompt_is_kept():
    """A nonce at token 40 or a clock in the middle leaves only what stands before it, and that is found."""
    a = Asking()
    for i in range(4):
        cached = a.ask(join(text(2000), text(4, 50_000 + 10 * i), text(3000, 10_000)), turns=[5004 - 4])
    assert cached == 2000


def test_salts_share_nothing_and_show_nothing():
    a = Asking()
    a.ask(text(3000), salt="alice")
    assert a.cache.find(a.cache.index.chain("bob"), text(3000)).shared == 0
    assert a.ask(text(3000), salt="bob") == 0
    assert a.cache.counters["tokens_lost_unmarked"] == 0

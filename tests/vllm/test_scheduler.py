"""The scheduler class: which base, which cut, when it stands down, and what it leaves to vLLM."""

from __future__ import annotations

import time
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from statemark.align import rules
from statemark.align.positions import Prefill
from statemark.align.rules.exact import ExactRule
from statemark.errors import ConfigurationError
from statemark.vllm import Scheduler, versions
from statemark.vllm.activation import Status
from statemark.vllm.scheduler import BoundaryCut, scheduler_class
from tests.vllm import fakes
from tests.vllm.fakes import FullAttentionSpec, MambaSpec, caches, config, group, request, uniform_groups


def build(groups: list[Any] | None = None, retention: int | None = 0, **options: Any) -> Any:
    return scheduler_class(fakes.Scheduler)(config(**options), caches(groups or uniform_groups(), retention))


@pytest.mark.usefixtures("factory")
class TestFactory:
    def test_the_base_follows_the_resolved_configuration(self) -> None:
        plain = Scheduler(vllm_config=config(), kv_cache_config=caches(uniform_groups()))
        ahead = Scheduler(vllm_config=config(asynchronous=True), kv_cache_config=caches(uniform_groups()))
        assert isinstance(plain, BoundaryCut)
        assert isinstance(ahead, BoundaryCut)
        assert not isinstance(plain, fakes.AsyncScheduler)
        assert isinstance(ahead, fakes.AsyncScheduler)

    @pytest.mark.parametrize("how", ["environment", "config"])
    def test_off_is_vllms_own_class(
        self, how: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        caplog.set_level("INFO", "vllm.statemark")
        additional: dict[str, Any] = {}
        if how == "environment":
            monkeypatch.setenv("STATEMARK_VLLM", "off")
        else:
            additional = {"statemark": {"rule": "off"}}
        made = Scheduler(vllm_config=config(additional=additional), kv_cache_config=caches(uniform_groups()))
        assert type(made) is fakes.Scheduler
        assert "vLLM's own cut is used (off)" in caplog.text

    def test_a_wrong_setting_stops_the_engine(self) -> None:
        with pytest.raises(ConfigurationError, match="not a choice"):
            Scheduler(
                vllm_config=config(additional={"statemark": {"rule": "quick"}}),
                kv_cache_config=caches(uniform_groups()),
            )


@pytest.mark.usefixtures("known")
class TestActivation:
    @pytest.mark.parametrize("rule", ["exact", "fast"])
    def test_active_on_a_known_version(self, rule: str) -> None:
        scheduler = build(additional={"statemark": {"rule": rule}})
        assert scheduler.statemark.status is Status.ACTIVE
        assert scheduler.statemark.rule.name == rule
        assert scheduler.advanced_in is None  # the self-test leaves nothing behind

    def test_the_self_test_takes_under_a_second(self) -> None:
        before = time.process_time()
        for block, budget in ((384, 2048), (1600, 512), (544, 16384), (2096, 2048)):
            assert build(uniform_groups(block), budget=budget).statemark.status is Status.ACTIVE
        assert time.process_time() - before < 4

    def test_groups_that_disagree_stop_the_engine(self) -> None:
        with pytest.raises(ConfigurationError, match="disagree"):
            build([group(FullAttentionSpec(784)), group(MambaSpec(784)), group(MambaSpec(1568))])

    def test_nothing_to_do_for_pure_attention(self) -> None:
        scheduler = build([group(FullAttentionSpec(16))])
        assert scheduler.statemark.status is Status.NOTHING_TO_DO

    def test_a_rule_that_fails_its_self_test_is_not_used(self, monkeypatch: pytest.MonkeyPatch) -> None:
        class Late(ExactRule):
            def cut(self, view: Prefill, start: int, offer: int) -> int:
                return min(super().cut(view, start, offer) + 1, offer)

        monkeypatch.setitem(rules.RULES, "exact", Late)
        scheduler = build()
        assert scheduler.statemark.status is Status.FAILED_TEST
        assert "reuses 0 of" in scheduler.statemark.detail
        assert scheduler._mamba_block_aligned_split(request(5000), 2000) == 1920  # stock: floor to blocks

    def test_a_rule_that_raises_is_not_used(self, monkeypatch: pytest.MonkeyPatch) -> None:
        class Broken(ExactRule):
            def cut(self, view: Prefill, start: int, offer: int) -> int:
                raise ZeroDivisionError("planted")

        monkeypatch.setitem(rules.RULES, "exact", Broken)
        scheduler = build()
        assert scheduler.statemark.status is Status.FAILED_TEST
        assert "ZeroDivisionError: planted" in scheduler.statemark.detail

    def test_an_unmodelled_layout_keeps_vllms_cut(self) -> None:
        scheduler = build([*uniform_groups(), group(fakes.ChunkedLocalAttentionSpec(384))])
        assert scheduler.statemark.status is Status.UNKNOWN_LAYOUT
        assert scheduler._mamba_block_aligned_split(request(5000), 2000) == 1920

    def test_an_unknown_model_is_cut_on_a_chunk_that_suits_all_kernels(self) -> None:
        scheduler = build(model={"architectures": ["NewHybridForCausalLM"], "model_type": "new"})
        assert scheduler.statemark.status is Status.ACTIVE
        assert scheduler.statemark.layout.frame.kernel_chunk.tokens == 256


class TestVersions:
    def test_an_unknown_version_keeps_vllms_cut(self, monkeypatch: pytest.MonkeyPatch) -> None:
        known = next(iter(versions.KNOWN.values()))
        monkeypatch.setattr(versions, "installed", lambda: ("0" * 12, *known[1:]))
        scheduler = build()
        assert scheduler.statemark.status is Status.UNKNOWN_VERSION
        assert "Scheduler._mamba_block_aligned_split" in scheduler.statemark.detail
        assert scheduler._mamba_block_aligned_split(request(5000), 2000) == 1920

    def test_a_version_whose_own_cut_passes_is_left_alone(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """As if upstream had taken the rule over: the function has changed, and does the same."""
        monkeypatch.setattr(versions, "installed", lambda: tuple("0" * 12 for _ in versions.FUNCTIONS))

        class Merged(fakes.Scheduler):
            def __init__(self, *args: Any, **kwargs: Any) -> None:
                super().__init__(*args, **kwargs)
                self._stock = ExactRule(self._stock.frame)  # type: ignore[assignment]

            def _mamba_block_aligned_split(self, view: Any, offer: int, *_: int) -> int:
                known = Prefill(view.num_prompt_tokens, view.num_tokens, view.shared_prefix_boundary)
                return self._stock.cut(known, view.num_computed_tokens, offer)

            def _reserve_prefill_lookahead(self, view: Any, computed: int, count: int) -> int:
                return count

        scheduler = scheduler_class(Merged)(config(), caches(uniform_groups()))
        assert scheduler.statemark.status is Status.UPSTREAM
        assert not scheduler.statemark.status.is_alarming

    def test_a_version_with_another_signature_keeps_working(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Stood down, the overridden methods pass on what they are given."""
        monkeypatch.setattr(versions, "installed", lambda: tuple("0" * 12 for _ in versions.FUNCTIONS))

        class Later(fakes.Scheduler):
            def _mamba_block_aligned_split(self, view: Any, offer: int, found: object, *, uncached: int) -> Any:  # type: ignore[override]
                return offer, found, uncached

            def _reserve_prefill_lookahead(self, view: Any) -> Any:  # type: ignore[override]
                return "nothing to reserve"

        scheduler = scheduler_class(Later)(config(), caches(uniform_groups()))
        assert scheduler.statemark.status is Status.UNKNOWN_VERSION
        assert scheduler._mamba_block_aligned_split(request(9), 9, "found", uncached=3) == (9, "found", 3)
        assert scheduler._reserve_prefill_lookahead(request(9)) == "nothing to reserve"

    def test_without_vllm_all_functions_are_missing(self, monkeypatch: pytest.MonkeyPatch) -> None:
        assert versions.fingerprint("statemark.nothing:at_all") == "missing"
        assert versions.fingerprint("statemark.vllm.versions:nothing") == "missing"
        assert versions.fingerprint("math:floor") == "no source"
        assert len(versions.fingerprint("statemark.vllm.versions:fingerprint")) == 12

    def test_every_known_version_has_every_function(self) -> None:
        for known in versions.KNOWN.values():
            assert len(known) == len(versions.FUNCTIONS)
            assert versions.changed(known) == ()


@pytest.mark.usefixtures("known")
class TestCut:
    def test_exact_ends_on_every_boundary(self) -> None:
        scheduler, at, ends = build(), 0, []
        while at < 1000:
            at += scheduler._mamba_block_aligned_split(request(1000, at), min(2048, 1000 - at))
            ends.append(at)
        assert ends == [384, 768, 1000]

    def test_computed_tokens_of_a_first_admission_count(self) -> None:
        """At admission, hits are passed beside the request, which still says 0."""
        scheduler = build()
        assert scheduler._mamba_block_aligned_split(request(1000), 616, 384, 0) == 384
        assert scheduler._mamba_block_aligned_split(request(1000), 616, 100, 284) == 384

    def test_decodes_are_left_alone(self) -> None:
        scheduler = build()
        assert scheduler._mamba_block_aligned_split(request(1000, 1000, known=1001), 4) == 4
        assert scheduler._reserve_prefill_lookahead(request(1000, 1000, known=1001), 1000, 4) == 4

    def test_padding_of_a_first_decode_step_is_kept_within_a_block(self) -> None:
        scheduler = build()
        assert scheduler._mamba_block_aligned_split(request(769), 4, 768, 0) == 4  # one token and three padded rows
        off = build(match_unit=64)
        assert off._mamba_block_aligned_split(request(767), 4, 766, 0) == 1  # the rows would pass the boundary 768

    def test_a_prefill_behind_another_may_wait_a_step_and_the_first_never(self) -> None:
        scheduler = build()
        scheduler.current_step = 7
        assert scheduler._mamba_block_aligned_split(request(1000, 384), 40) == 40
        scheduler._reserve_prefill_lookahead(request(1000, 384), 384, 40)
        assert scheduler._mamba_block_aligned_split(request(1000), 40) == 0  # less than a kernel chunk of 64 is left
        assert scheduler._mamba_block_aligned_split(request(1000), 130) == 128
        assert scheduler._mamba_block_aligned_split(request(30), 30) == 30  # whole prompts always fit
        scheduler.current_step = 8
        assert scheduler._mamba_block_aligned_split(request(1000), 40) == 40

    def test_a_prefill_that_an_encoder_stops_makes_nobody_wait(self) -> None:
        scheduler = build()
        scheduler.current_step = 7
        assert scheduler._mamba_block_aligned_split(request(1000), 500) == 384
        assert scheduler._reserve_prefill_lookahead(request(1000), 0, 0) == 0
        assert scheduler._mamba_block_aligned_split(request(1000), 40) == 40

    def test_the_reserve_of_a_drafter_does_not_take_a_boundary_back(self) -> None:
        """B = T = 384, three MTP modules, 1,153 tokens: vLLM's own order ends 384, 768, 1150, then 0 for ever."""

        class Modules(fakes.Scheduler):
            lookahead, drop = 3, True

        def ends(scheduler: Any) -> list[int]:
            at, found = 0, []
            for _ in range(8):
                view = request(1153, at)
                count = scheduler._mamba_block_aligned_split(view, min(384, 1153 - at))
                count = scheduler._reserve_prefill_lookahead(view, at, count)
                at += count
                found.append(at)
                if at == 1153:
                    break
            return found

        spec = SimpleNamespace(method="mtp", max_num_new_slots_for_drafting=0)
        groups = [
            group(FullAttentionSpec(384), drafter=True),
            group(MambaSpec(384, num_speculative_blocks=2)),
        ]
        stock = Modules(config(budget=384, speculative=spec), caches(groups))
        ours = scheduler_class(Modules)(config(budget=384, speculative=spec), caches(groups))
        assert ours.statemark.status is Status.ACTIVE
        assert ends(stock)[-1] == 1150
        assert ends(ours)[-1] == 1153

    def test_a_chunk_that_an_encoder_shortens_keeps_the_reserve_but_never_nothing(self) -> None:
        class Modules(fakes.Scheduler):
            lookahead, drop = 3, True

        spec = SimpleNamespace(method="mtp", max_num_new_slots_for_drafting=0)
        groups = [group(FullAttentionSpec(384), drafter=True), group(MambaSpec(384))]
        scheduler = scheduler_class(Modules)(config(speculative=spec), caches(groups))
        view = request(300)
        assert scheduler._mamba_block_aligned_split(view, 300) == 300
        assert scheduler._reserve_prefill_lookahead(view, 0, 299) == 297
        assert scheduler._reserve_prefill_lookahead(request(300, 298), 298, 1) == 1

    @given(data=st.data())
    def test_never_more_than_the_offer_never_nothing_never_past_a_kept_boundary(self, data: st.DataObject) -> None:
        rule = data.draw(st.sampled_from(["exact", "fast"]))
        scheduler = _SHARED.setdefault(rule, None) or _make(rule)
        prompt = data.draw(st.integers(1, 6000))
        known = prompt + data.draw(st.sampled_from([0, 0, 1, 20]))
        start = data.draw(st.integers(0, known - 1))
        offer = data.draw(st.integers(1, min(2048, known - start)))
        scheduler.advanced_in = None
        count = scheduler._mamba_block_aligned_split(request(prompt, start, known=known), offer)
        assert 1 <= count <= offer
        replay = (prompt - 1) // 384 * 384
        if start < replay < start + offer:
            assert start + count <= replay


_SHARED: dict[str, Any] = {}


def _make(rule: str) -> Any:
    known = next(iter(versions.KNOWN.values()))
    before, versions.installed = versions.installed, lambda: known  # type: ignore[assignment]
    try:
        _SHARED[rule] = build(additional={"statemark": {"rule": rule}})
    finally:
        versions.installed = before
    return _SHARED[rule]

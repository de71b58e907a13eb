"""What speculative decoding does to the cache: draft slots in a step, lookahead at a chunk's end, the dropped block.

The rules are those of vLLM 0.32's speculative config. Knows the method and its depth, not blocks.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from statemark.align.families.common import plain_attention
from statemark.align.fields import Fields
from statemark.align.flags import SpeculativeFlags
from statemark.align.shape import AttentionShape, ModelShape
from statemark.errors import ConfigurationError

_FROM_HIDDEN_STATES = ("eagle", "eagle3", "mtp", "dflash", "dspark")
_WITHOUT_CACHE = ("ngram", "ngram_gpu", "suffix", "medusa", "mlp_speculator", "custom_class")
_OTHER = ("draft_model", "extract_hidden_states")
METHODS = (*_FROM_HIDDEN_STATES, *_WITHOUT_CACHE, *_OTHER)


@dataclass(frozen=True)
class DraftShape:
    """The cache of a drafter that has layers of its own."""

    attention: AttentionShape
    layers: int
    sliding_layers: int = 0
    window: int | None = None
    backend: str | None = None
    ranks: int | None = None


@dataclass(frozen=True)
class Drafting:
    """Speculative decoding, resolved. `NONE` below is its absence."""

    method: str
    depth: int
    slots: int = 0
    lookahead: int = 0
    block_drop: bool = False
    native_layers: int = 0
    draft: DraftShape | None = None
    hidden_state_layers: int = 0

    @property
    def own_cache(self) -> bool:
        """Whether the drafter's layers never write the target's own attention blocks."""
        return self.method in ("dflash", "dspark", "eagle", "eagle3", "draft_model")

    @property
    def drafter_is_found(self) -> bool:
        """Whether vLLM can tell which group holds the drafter. Where it can't, every group pays for the drop."""
        return self.method == "mtp" or (self.draft is not None and self.draft.attention.latent)


NONE = Drafting("none", 0)


def resolve_drafting(
    flags: SpeculativeFlags | None, target: ModelShape, draft_config: Mapping[str, Any] | None = None
) -> Drafting:
    """What the flags come to with this target. `draft_config` is the config.json of the drafter, where it has one."""
    if flags is None:
        return NONE
    method = _method(flags, draft_config)
    modules = 1
    if method == "mtp":
        modules = max(target.mtp_layers, 1)
        if target.mtp_layers == 0:
            raise ConfigurationError(
                f"--speculative-config: {target.family} has no MTP layer in its config", hint="use another method"
            )
    depth = flags.depth if flags.depth is not None else modules if method == "mtp" else None
    if depth is None:
        raise ConfigurationError(
            f"--speculative-config: {method} needs num_speculative_tokens",
            hint='for example "num_speculative_tokens": 3',
        )
    draft = None
    if method in ("dflash", "dspark", "eagle", "eagle3", "draft_model") and draft_config is not None:
        draft = read_draft(draft_config, method, flags)
    lookahead = 0
    if method in _FROM_HIDDEN_STATES:
        lookahead = depth if method == "mtp" and min(modules, depth) > 1 else 1
    return Drafting(
        method=method,
        depth=depth,
        slots=_slots(method, depth, flags.parallel_drafting or method in ("dflash", "dspark")),
        lookahead=lookahead,
        block_drop=method in _FROM_HIDDEN_STATES and not flags.disable_block_drop,
        native_layers=modules if method == "mtp" else 0,
        draft=draft,
        hidden_state_layers=1 if method == "extract_hidden_states" else 0,
    )


def _method(flags: SpeculativeFlags, draft_config: Mapping[str, Any] | None) -> str:
    name = flags.method
    if name is None:
        if flags.model is None:
            raise ConfigurationError("--speculative-config needs a method", hint=f"one of {', '.join(METHODS)}")
        lowered = flags.model.lower()
        model_type = str((draft_config or {}).get("model_type", "")).lower()
        for known in ("eagle3", "eagle", "dflash", "dspark"):
            if known in lowered or known in model_type:
                return known
        return "ngram" if lowered in ("ngram", "[ngram]") else "draft_model"
    if name.endswith("_mtp"):
        return "mtp"
    if name not in METHODS:
        raise ConfigurationError(
            f"--speculative-config: unknown method {name!r}", hint=f"known are {', '.join(METHODS)}"
        )
    return name


def _slots(method: str, depth: int, parallel: bool) -> int:
    """Query positions that a request takes in a step besides its scheduled tokens."""
    if method == "dflash":
        return depth
    if parallel:
        return depth if method == "draft_model" else depth - 1
    return 1 if method == "draft_model" else 0


def read_draft(config: Mapping[str, Any], method: str, flags: SpeculativeFlags) -> DraftShape:
    """The drafter's own layers, from its config.json."""
    fields = Fields(config, "the drafter's config.json")
    text = fields.part("text_config") or fields
    layers = text.integer("num_hidden_layers", default=1)
    own = text.part("dflash_config")
    sliding = sum(k == "sliding_attention" for k in text.strings("layer_types") or ())
    if method in ("dflash", "dspark"):
        if own is not None and own.raw("use_swa") and not sliding:
            sliding = layers
    elif (text.text("model_type") or "").startswith(("qwen2", "qwen3")):
        sliding = 0  # vLLM's plain Qwen layers take no window, whatever their config says
    window = None
    if sliding:
        window = (own.integer("swa_window_size", default=0) if own else 0) or text.integer("sliding_window")
    return DraftShape(
        attention=plain_attention(text),
        layers=layers,
        sliding_layers=sliding,
        window=window,
        backend=flags.attention_backend,
        ranks=flags.draft_ranks,
    )

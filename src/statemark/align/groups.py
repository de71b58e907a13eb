"""Cache groups: how layers with pages of different sizes come to share one pool of blocks.

The rules are those of vLLM 0.32's page unification. Knows layers' blocks and bytes; not models, flags or schedulers.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from math import ceil

from statemark.align.units import AttentionPage, Bytes, DraftPage, RingPage, StateGrid, Unit
from statemark.errors import ConfigurationError


class Role(Enum):
    ATTENTION = "attention"
    DRAFT = "draft"
    STATE = "state"
    RING = "ring"
    INDEX = "index"
    HIDDEN = "hidden states"


_UNIT_OF = {
    Role.ATTENTION: AttentionPage,
    Role.DRAFT: DraftPage,
    Role.STATE: StateGrid,
    Role.RING: RingPage,
    Role.INDEX: AttentionPage,
    Role.HIDDEN: AttentionPage,
}


@dataclass(frozen=True)
class LayerSpec:
    """Layers that are alike: what one of them needs before the pool is laid out."""

    role: Role
    label: str
    layers: int
    block: int
    content_bytes: int  # of one block, without padding
    page_bytes: int  # of one block, with the padding that the platform asked for
    latent: bool = False
    window: int | None = None
    reserve: int = 0  # blocks that one request holds whatever its length


@dataclass(frozen=True)
class Group:
    """`copies` groups that are alike, each of `layers` layers behind one block table; `total` leaves out the empty
    layers that pad the last of them."""

    role: Role
    label: str
    unit: Unit
    layers: int
    copies: int
    total: int
    content_bytes: Bytes
    page_bytes: Bytes
    window: int | None = None
    reserve: int = 0
    dropped: bool = False  # a hit gives back its last block here, for the drafter's sake
    scale: int = 1  # decode context parallelism: tokens of a block over all ranks

    @property
    def cacheable(self) -> bool:
        return self.role is not Role.RING

    @property
    def fine_grained(self) -> bool:
        """Whether a hit may end inside a block."""
        return self.window is None

    @property
    def padding(self) -> float:
        """Padding bytes as a share of the content."""
        return (self.page_bytes - self.content_bytes) / self.content_bytes

    @property
    def tokens(self) -> int:
        """Tokens that a block stands for, over all context-parallel ranks."""
        return self.unit.tokens * self.scale


def unify(specs: Sequence[LayerSpec]) -> list[LayerSpec]:
    """Give all layers one page size: states are padded, attention takes whole multiples of its block or padding."""
    pages = {s.page_bytes for s in specs}
    if len(pages) <= 1:
        return list(specs)
    largest = max(pages)
    out: list[LayerSpec] = []
    for spec in specs:
        if spec.page_bytes == largest:
            out.append(spec)
        elif spec.role is Role.STATE:
            out.append(replace(spec, page_bytes=largest))
        elif largest % spec.page_bytes == 0:
            ratio = largest // spec.page_bytes
            out.append(
                replace(spec, block=spec.block * ratio, content_bytes=spec.content_bytes * ratio, page_bytes=largest)
            )
        elif not spec.latent:
            out.append(replace(spec, page_bytes=largest))
        else:
            raise ConfigurationError(
                f"the page of {spec.label} ({spec.page_bytes} bytes) doesn't divide the largest page ({largest}) and "
                "latent attention can't be padded: vLLM refuses to start",
                hint="use a drafter with other head sizes",
            )
    return out


def split(specs: Sequence[LayerSpec]) -> list[Group]:
    """Cut each kind of layer into groups of one size, padding the last one with empty layers."""
    fewest = min(s.layers for s in specs)
    most = max(s.layers for s in specs)
    size = most if most < fewest * 1.5 else fewest
    return [_group(s, size, ceil(s.layers / size)) for s in specs]


def packed(specs: Sequence[LayerSpec]) -> list[Group]:
    """Block-outermost layouts keep every layer's own page and pack them side by side."""
    anchor = max(s.layers * s.page_bytes for s in specs if s.role is not Role.STATE)
    out = []
    for spec in specs:
        copies = 1
        if spec.role is Role.STATE:
            copies = ceil(spec.layers / max(anchor // spec.page_bytes, 1))
        out.append(_group(spec, ceil(spec.layers / copies), copies))
    return out


def _group(spec: LayerSpec, layers: int, copies: int) -> Group:
    return Group(
        role=spec.role,
        label=spec.label,
        unit=_UNIT_OF[spec.role](spec.block),
        layers=layers,
        copies=copies,
        total=spec.layers,
        content_bytes=Bytes(spec.content_bytes),
        page_bytes=Bytes(spec.page_bytes),
        window=spec.window,
        reserve=spec.reserve,
    )


def state_grid(groups: Iterable[Group]) -> StateGrid:
    """The one grid that all recurrent groups share. Groups that disagree are refused: no chunk end could suit both."""
    found = [g for g in groups if g.role is Role.STATE]
    if not found:
        raise ConfigurationError("no recurrent group among the cache groups", hint="align mode is for hybrid models")
    sizes = sorted({g.unit.tokens for g in found})
    if len(sizes) > 1:
        shown = "; ".join(f"{g.label}: {g.unit.tokens}" for g in found)
        raise ConfigurationError(
            f"the recurrent groups disagree about their block: {shown}",
            hint="states are saved at chunk ends, and no chunk end can be a boundary of both; report this geometry",
        )
    return StateGrid(sizes[0])

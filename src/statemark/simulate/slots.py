"""llama.cpp's server as a cache: slots that keep what they ran last, checkpoints in them, prompts aside in host memory.

Follows llama-server at the version that docs/simulate.md names, for models with a recurrent state and without drafts.
Knows no time and no batch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from statemark.errors import ConfigurationError
from statemark.simulate.workload import Request, common_prefix

_MIB = 1 << 20
_KEEP = 0.25  # a prompt aside is only taken back where this much of it serves the new one
_LOSE = 0.5  # a slot's prompt is put aside where less than this of it serves the new one
_TAIL = 4  # tokens that are run alone at a prompt's end


@dataclass(frozen=True)
class SlotFlags:
    """llama-server's flags of these names. `unified`: one pool for all slots, as where `parallel` isn't given."""

    ubatch: int = 512
    parallel: int = 4
    unified: bool = True
    ctx_checkpoints: int = 32
    checkpoint_min_step: int = 8192
    cache_ram: int = 8192  # MiB; 0: nothing is put aside, -1: no limit
    slot_prompt_similarity: float = 0.1


def parse_slot_flags(text: str) -> SlotFlags:
    """`parallel=2,ctx-checkpoints=8,...`; what isn't named is llama-server's default."""
    low = {"ubatch": 1, "parallel": 1, "cache_ram": -1}
    known: dict[str, Any] = asdict(SlotFlags())
    found: dict[str, float] = {}
    for part in text.split(","):
        name, _, value = part.partition("=")
        name = name.strip().replace("-", "_")
        try:
            found[name] = float(value)
            wrong = name not in known or not low.get(name, 0) <= found[name] < 1 << 31
            wrong |= isinstance(known.get(name), int) and found[name] % 1 != 0
            wrong |= isinstance(known.get(name), bool) and found[name] > 1
        except ValueError:
            wrong = True
        if wrong:
            raise ConfigurationError(
                f"--llama: {part!r} is no setting of llama-server",
                hint=f"like parallel=2,ctx-checkpoints=8; settings: {', '.join(n.replace('_', '-') for n in known)}",
            )
    flags = SlotFlags(unified="parallel" not in found)
    return replace(flags, **{n: type(known[n])(v) for n, v in found.items()})


@dataclass(eq=False)
class Text:
    """The first `length` tokens of a request's prompt and answer, and the states kept inside: (position, task)."""

    request: Request
    length: int
    checkpoints: list[tuple[int, int]] = field(default_factory=list)

    def shared(self, request: Request) -> int:
        return common_prefix(self.request, self.length, request, request.prompt)


class Slot:
    """`text` is what its memory holds; `used`: when it was let go, -1 for never; `task`: the request's number."""

    __slots__ = ("busy", "number", "task", "text", "used")

    def __init__(self, number: int) -> None:
        self.number = number
        self.text: Text | None = None
        self.busy = False
        self.task = 0
        self.used = -1


class SlotCache:
    """`token_bytes`: keys and values of a token; `state_bytes`: one recurrent state. `context`: tokens of the pool."""

    def __init__(self, flags: SlotFlags, batch: int, token_bytes: int, state_bytes: int, context: int) -> None:
        self.flags = flags
        self.slots = [Slot(n) for n in range(flags.parallel)]
        self.aside: list[Text] = []  # oldest first
        self.ubatch = min(batch, flags.ubatch)
        self._ends = (min(batch, _TAIL + self.ubatch), min(batch, _TAIL))
        self._token_bytes = token_bytes
        self._state_bytes = state_bytes
        self._context = context
        self._clock = 0
        self._tasks = 0

    # --- a request begins and ends ----------------------------------------------------------------------------

    def begin(self, request: Request) -> tuple[Slot, int] | None:
        """The slot that runs the request, and how many of its tokens stay; None where every slot is busy."""
        free = [s for s in self.slots if not s.busy]
        if not free:
            return None
        slot, lost = self._choose(free, request)
        if lost and self.flags.cache_ram:
            self._put_aside(slot)
            self._take_back(slot, request)
            self._fit()
        slot.busy = True
        self._tasks += 1
        slot.task = self._tasks
        if self.flags.cache_ram:
            self._leave_idle()
        cached = self._resume(slot, request)
        return slot, cached

    def end(self, slot: Slot, length: int) -> None:
        """The request is done; `length` of its tokens have been run."""
        assert slot.text is not None
        slot.text.length = length
        slot.busy = False
        self._clock += 1
        slot.used = self._clock

    def _choose(self, free: Sequence[Slot], request: Request) -> tuple[Slot, bool]:
        """The slot with the most alike prompt, or the one idle for longest; whether its prompt would be lost."""
        best, chosen, keeps = 0.0, None, 0.0
        for slot in free if self.flags.slot_prompt_similarity else ():
            if slot.text is None or not slot.text.length:
                continue
            shared = slot.text.shared(request)
            alike = shared / request.prompt
            if alike > best and alike > self.flags.slot_prompt_similarity:
                best, chosen, keeps = alike, slot, shared / slot.text.length
        if chosen is not None:
            return chosen, keeps < _LOSE
        chosen = free[0]
        for slot in free[1:]:
            if slot.used <= chosen.used:
                chosen = slot
        return chosen, True

    def _leave_idle(self) -> None:
        """Whenever a request begins, idle slots are copied to host memory, and cleared where the pool is shared."""
        for slot in self.slots:
            if slot.busy or slot.text is None:
                continue
            if self._put_aside(slot):
                self._fit()
            if self.flags.unified:
                slot.text = None

    def _resume(self, slot: Slot, request: Request) -> int:
        """How much of the slot's prompt stays. A state can't be cut back: what the slot holds must be a beginning of
        the new prompt, or a checkpoint at or before the place where they part is loaded."""
        old = slot.text
        same = 0 if old is None else old.shared(request)
        kept = [] if old is None else old.checkpoints
        at = same
        if old is not None and same:
            reach = same if same < request.prompt else same - 1  # a token must be left to run
            if old.length > reach:
                found = next((p for p, _ in reversed(kept) if p <= same + 1 and (p <= reach or p == 1)), 0)
                at = found
        cached = at
        if cached == request.prompt:
            cached -= 1
        slot.text = Text(request, cached, [c for c in kept if c[0] <= at + 1])
        return cached

    # --- checkpoints ------------------------------------------------------------------------------------------

    def chunk_end(self, slot: Slot, room: int) -> int:
        """Where the prompt's next chunk ends, with `room` tokens left in the batch."""
        assert slot.text is not None
        request, start, kept = slot.text.request, slot.text.length, slot.text.checkpoints
        stops = [start + room, request.prompt]
        if self.flags.ctx_checkpoints:
            stops += [request.prompt - n for n in self._ends if request.prompt - n > start]
            for turn in request.turns:
                far = not kept or turn > kept[-1][0] + self.flags.checkpoint_min_step
                if turn > start and (turn == request.turns[-1] or far):
                    stops.append(turn)
        return min(stops)

    def run(self, slot: Slot, end: int) -> None:
        """Run the prompt up to `end`; the state before it may be kept, as far as it belongs to the prompt's end or to
        the beginning of a message."""
        assert slot.text is not None
        request, start, kept = slot.text.request, slot.text.length, slot.text.checkpoints
        slot.text.length = end
        if not self.flags.ctx_checkpoints or not start:
            return
        near = request.prompt < end + self.ubatch
        last = bool(request.turns) and start == request.turns[-1]
        if near or (start in request.turns and (last or not kept or self._far(kept, start))):
            self._keep(kept, start, slot.task)

    def _far(self, kept: list[tuple[int, int]], start: int) -> bool:
        return start > kept[-1][0] + self.flags.checkpoint_min_step

    def _keep(self, kept: list[tuple[int, int]], position: int, task: int) -> None:
        most, index, last = self.flags.ctx_checkpoints, 0, -1
        while len(kept) + 1 >= most and index < len(kept):
            at, writer = kept[index]
            if writer != task and last >= 0 and at <= last + self.flags.checkpoint_min_step:
                del kept[index]
                continue
            last = at
            index += 1
        del kept[: max(0, len(kept) + 1 - most)]
        kept[:] = [c for c in kept if c[0] != position]
        kept.append((position, task))

    # --- host memory ------------------------------------------------------------------------------------------

    def _bytes(self, text: Text) -> int:
        return text.length * self._token_bytes + (1 + len(text.checkpoints)) * self._state_bytes

    def _put_aside(self, slot: Slot) -> bool:
        text = slot.text
        if text is None or not text.length:
            return False
        shared = [common_prefix(t.request, t.length, text.request, text.length) for t in self.aside]
        if text.length in shared:
            return False
        size, limit = self._bytes(text), self.flags.cache_ram * _MIB
        if 0 < limit < size:
            return False
        self.aside = [t for t, s in zip(self.aside, shared, strict=True) if s < t.length]
        while self.aside and 0 < limit < self._held() + size:
            del self.aside[0]
        self.aside.append(Text(text.request, text.length, list(text.checkpoints)))
        return True

    def _take_back(self, slot: Slot, request: Request) -> None:
        """Load the prompt that serves the new one better than the slot's own, and that it makes better use of."""
        keeps, alike, best = -1.0, 0.0, None
        if slot.text is not None and slot.text.length:
            shared = slot.text.shared(request)
            keeps, alike = shared / slot.text.length, shared / request.prompt
        for text in self.aside:
            shared = text.shared(request)
            keep, like = shared / text.length, shared / request.prompt
            if keep >= _KEEP and keep > keeps and like > alike:
                keeps, alike, best = keep, like, text
        if best is not None:
            self.aside.remove(best)
            slot.text = best

    def _held(self) -> int:
        return sum(map(self._bytes, self.aside))

    def _fit(self) -> None:
        """Drop the oldest until bytes and tokens are within their limits; bytes to spare allow more tokens."""
        limit = self.flags.cache_ram * _MIB
        while self.aside and 0 < limit < self._held():
            del self.aside[0]
        tokens = sum(t.length for t in self.aside)
        most = float(self._context)
        if limit > 0:
            most = max(most, limit / max(1.0, self._held() / max(1, tokens)))
        while self.aside and tokens > most:
            tokens -= self.aside.pop(0).length

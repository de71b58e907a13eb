"""The chunk rule of vLLM 0.32, defects included. What it should have done is in `exact` and `fast`.

It reads the smallest block of any group where the state grid belongs, may return 0 for ever, and stops for a replay in
the wrong unit where groups differ.
"""

from __future__ import annotations

from statemark.align.frame import Frame
from statemark.align.positions import Prefill, export_is_possible, export_position, replay_point


class StockRule:
    """`_mamba_block_aligned_split` followed by the reserve for multi-module MTP."""

    name = "vllm-0.32"

    def __init__(self, frame: Frame) -> None:
        self.frame = frame

    def cut(self, request: Prefill, start: int, offer: int) -> int:
        return self._reserve(request, start, self._split(request, start, offer))

    def cut_behind(self, request: Prefill, start: int, offer: int) -> int:
        return self.cut(request, start, offer)

    def _split(self, request: Prefill, start: int, offer: int) -> int:
        frame, last_token = self.frame, request.end
        if start >= last_token:
            return offer
        block = frame.config_minimum.tokens  # the defect: the state grid is meant
        end = start + offer
        replay = replay_point(request.known, block, frame.drop)
        position = export_position(frame, request)
        exported = end >= last_token and export_is_possible(frame, start, end, position, block)
        if exported:
            replay = 0
        if end < last_token:
            limit = frame.step_limit
            if frame.long_prefill_threshold > 0:
                limit = min(limit, frame.long_prefill_threshold)
            floored = end // block * block
            if floored > start or block <= limit:
                end = floored
        stops = [replay]
        if start % block and not exported:
            stops.append((start // block + 1) * block)
        if frame.fine and not exported:
            part = replay_point(request.prompt, frame.hash_unit.tokens, frame.drop)
            if replay < part < request.prompt:
                stops.append(part)
        if start < request.junction < end:
            exact = frame.junction_checkpoint and request.junction <= request.prompt
            stops.append(request.junction if exact else start + (request.junction - start) // block * block)
        end = min((s for s in stops if start < s < end), default=end)
        return max(end - start, 0)

    def _reserve(self, request: Prefill, start: int, count: int) -> int:
        remaining = request.known - start - count
        if 0 < remaining < self.frame.lookahead:
            count -= self.frame.lookahead - remaining
        return max(count, 0)

"""How far a list of prompts is, as one line on stderr that disappears. Only where somebody may look: on a terminal."""

from __future__ import annotations

from collections.abc import Sequence
from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from statemark.engine.outputs import TextDelta
from statemark.engine.request import EngineRequest


class GenerationProgress:
    """`with GenerationProgress(requests, show) as progress: progress.add(delta)`."""

    def __init__(self, requests: Sequence[EngineRequest], show: bool, console: Console | None = None) -> None:
        console = console or Console(stderr=True)
        self._left = {request.request_id: request.params.n for request in requests}
        self._tokens = 0
        self._bar = Progress(
            TextColumn("answers"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[tokens]} tokens"),
            TimeElapsedColumn(),
            console=console,
            transient=True,
            disable=not show or not console.is_terminal,
        )
        self._task = self._bar.add_task("", total=len(requests), tokens=0)

    def __enter__(self) -> GenerationProgress:
        self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bar.stop()

    def add(self, delta: TextDelta) -> None:
        self._tokens += len(delta.token_ids)
        ended = False
        if delta.finish_reason is not None:
            self._left[delta.request_id] -= 1
            ended = self._left[delta.request_id] == 0
        self._bar.update(self._task, advance=int(ended), tokens=self._tokens)

"""Draws the tour in the terminal: plain words, readable without colour and at 80 columns. Computes nothing."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Sequence

from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from statemark.demo.stage import Stage
from statemark.demo.tour import Caught, Faulty, Segment, Tour, Turn

_WIDTH = 80
_LEAST = {"answer": 3}  # columns of a message at least: a question of 20 tokens must be seen beside a document
_SHORT = {"assistant": "answer", "answer": ">"}  # names that fit a few columns
_SOME = 7
_ANSWER = 60  # characters of an answer that are shown
_DIGEST = 12  # digits that are shown
_MARKS = 8  # marks whose positions are listed

_NEXT = (
    ("statemark chat", "talk to this model; see what each turn reuses"),
    ("statemark serve", "the OpenAI API, for a client of yours"),
    ("statemark chat --model FOLDER", "the same with your Qwen3.5 checkpoint"),
    ("statemark demo --json", "the figures of this tour"),
    ("statemark --help", "everything else"),
)


class Drawing:
    """One method for each part of the tour, called as soon as the part has something to show."""

    def __init__(self, console: Console | None = None) -> None:
        self.console = console or Console(highlight=False)
        self.width = min(_WIDTH, self.console.width)

    def opening(self, stage: Stage, name: str) -> None:
        threads = f"{stage.threads} thread{'' if stage.threads == 1 else 's'}"
        self._line(Text("A tour of Statemark's prefix cache", "bold"))
        self._line(Text(f"model: {name} ({stage.spec.dtype}, {stage.isa}, {threads})", "dim"))
        self._words(
            """
            Part of this model's memory of a text is one block of numbers, its state, which every token overwrites.
            So a prompt that begins like an earlier one can be continued only from a place where the state was saved.
            Statemark saves it at marks, each together with the exact tokens that it stands for. Below, every request
            is answered twice, with the cache and without it. A digest is a checksum over all the numbers behind an
            answer, so equal digests mean: the cache changed nothing at all.
            """
        )

    def chat_begins(self, tour: Tour) -> None:
        self._heading(f"1. A long document, and {len(tour.document.questions)} questions about it in one chat")
        first, *rest = tour.document.text.split("\n")
        lines = [first, *rest[:2], "...", *rest[-1:]]
        self._line(Text("\n".join(lines), "dim"), indent=4)
        self._line(Text(f"({len(rest) + 1} lines)", "dim"), indent=4)

    def turn(self, number: int, turn: Turn) -> None:
        self._line()
        self._question(f"Turn {number}", turn)
        self._bar(turn)
        if number == 1:
            self._line(Text("= reused   . computed   ^ a mark: the state was saved here", "dim"), indent=2)
            self._line(Text("(a message has at least a few columns, so this isn't to scale)", "dim"), indent=2)

    def second_client(self, turn: Turn) -> None:
        self._heading("2. A second client asks about the same document")
        self._question("Client 2", turn)
        self._bar(turn)
        self._words("Another chat, so no turn of it was seen before; but the document was, and a mark lies at its end.")

    def summary(self, turns: Sequence[Turn]) -> None:
        self._line()
        table = _table("asked", ">prompt", ">reused", ">computed", ">first token:\nno cache", ">\ncache", "digests")
        for name, turn in zip(_names(turns), turns, strict=True):
            table.add_row(
                name,
                f"{turn.prompt_tokens:,}",
                f"{turn.warm.cached:,}",
                f"{turn.prompt_tokens - turn.warm.cached:,}",
                _time(turn.cold.seconds),
                _time(turn.warm.seconds),
                _verdict(turn.equal),
            )
        self._line(table)
        if not any(turn.right for turn in turns):
            self._words(
                """
                None of the answers is right. This model doesn't know better, or has random weights; whether the cache
                changes anything shows in the digests all the same.
                """
            )

    def fault_begins(self) -> None:
        self._heading("3. The same requests once more, with a planted fault")
        self._words(
            """
            As when a client tries again: of each prompt, only the last token is left to compute. But now the cache
            makes the mistake that caches of such models are known for: it continues with a state that was saved at
            another position of the prompt. Nothing crashes, and nothing is logged.
            """
        )
        self._line()

    def fault(self, results: Sequence[Faulty]) -> None:
        table = _table("asked", ">continued\nat token", ">with the\nstate of", "answer", "", "digest")
        for name, result in zip(_names([r.turn for r in results]), results, strict=True):
            planted = result.planted
            table.add_row(
                name,
                f"{planted.position:,}" if planted else "-",
                f"{planted.taken:,}" if planted else "-",
                Text(self._one_line(result.reply.answer)),
                _right(result.right),
                _verdict(result.equal),
            )
        self._line(table)
        moved = [result for result in results if result.planted]
        wrong = sum(result.turn.right and not result.right for result in moved)
        digests = sum(not result.equal for result in moved)
        words = sum(result.reply.answer != result.turn.cold.answer for result in moved)
        differ = (
            f"Of {len(moved)} answers from a wrong state, {digests} differ in the digest and {words} in their words"
        )
        if wrong:
            self._words(
                f"""
                {differ}, and {wrong} that {_was(wrong)} right before {_was(wrong)} wrong now. They read as well as the
                right ones: whoever asks can't tell, only the digest does.
                """
            )
        else:
            self._words(f"{differ}. No error was seen: whoever asks can't tell, only the digest does.")

    def caught(self, caught: Caught) -> None:
        self._line()
        self._words(
            """
            That was Statemark with its check switched off. With the check, which is always on otherwise, the same
            fault in turn 2 ends like this. The engine logs:
            """
        )
        for said in caught.said:
            self._line(Text(textwrap.fill(said, self.width - 4), "dim"), indent=4)
        result = caught.result
        instead = "" if result.planted is None else f" instead of {result.planted.position:,}"
        self._words(
            f"""
            It drops the state and goes on from an earlier mark, so {result.reply.cached:,} tokens are reused{instead},
            and the answer is what it is without a cache:
            """
        )
        self._line(Text.assemble("  ", self._one_line(result.reply.answer), "  ", _right(result.right)))
        self._line(
            Text(f"  digest {result.reply.digest[:_DIGEST]}; without the cache {result.turn.cold.digest[:_DIGEST]}: ")
            + _verdict(result.equal)
        )

    def closing(self) -> None:
        self._heading("4. What to type next")
        table = Table.grid(padding=(0, 2, 0, 0))
        for command, words in _NEXT:
            table.add_row(Text(f"  {command}", "bold"), words)
        self._line(table)

    # --- pieces -----------------------------------------------------------------------------------------------

    def _question(self, who: str, turn: Turn) -> None:
        warm, cold = turn.warm, turn.cold
        self._line(Text.assemble((f"{who}  ", "bold"), turn.question.text))
        self._line(Text.assemble("  ", self._one_line(warm.answer), "  ", _right(turn.right)))
        faster = f", {cold.seconds / warm.seconds:.0f} times sooner" if warm.seconds * 2 < cold.seconds else ""
        self._line(
            Text(
                f"  prompt of {turn.prompt_tokens:,} tokens: {warm.cached:,} reused, "
                f"{turn.prompt_tokens - warm.cached:,} computed\n"
                f"  first token after {_time(warm.seconds)}; without the cache {_time(cold.seconds)}{faster}\n"
                f"  digest {warm.digest[:_DIGEST]}; without the cache {cold.digest[:_DIGEST]}: "
            )
            + _verdict(turn.equal)
        )

    def _one_line(self, answer: str) -> str:
        """An answer on one line of this terminal, with nothing in it that would move the cursor."""
        plain = "".join(c if c.isprintable() else " " for c in answer)
        words = " ".join(plain.encode(self.console.encoding, "replace").decode(self.console.encoding).split())
        return words if len(words) <= _ANSWER else words[: _ANSWER - 4] + " ..."

    def _heading(self, text: str) -> None:
        self._line()
        self._line(Text(text, "bold"))
        self._line(Text("-" * min(len(text), self.width), "dim"))

    def _words(self, text: str) -> None:
        self._line(Text(textwrap.fill(" ".join(text.split()), self.width)))

    def _bar(self, turn: Turn) -> None:
        self._line(bar(turn.segments, turn.warm.cached, turn.marks, self.width - 2), indent=2)
        shown = ", ".join(f"{mark:,}" for mark in turn.marks[-_MARKS:])
        dots = "..., " if len(turn.marks) > _MARKS else ""
        self._line(Text(f"marks after {dots}{shown} tokens", "dim"), indent=2)

    def _line(self, what: Text | Table | str = "", *, indent: int = 0) -> None:
        shown = Padding(what, (0, 0, 0, indent), expand=False) if indent else what
        self.console.print(shown, width=self.width, overflow="fold")


def bar(segments: Sequence[Segment], reused: int, marks: Iterable[int], width: int) -> Text:
    """A prompt as three rows: whose tokens they are, which of them were reused, and where marks lie.

    Every message has a few columns at least; within a message, columns are proportional to tokens.
    """
    columns = _columns(segments, width - len(segments) - 1)
    names, use, below = Text("|"), Text("|"), [" "] * (sum(columns) + len(columns) + 1)
    at = 1
    for segment, count in zip(segments, columns, strict=True):
        name = _SHORT.get(segment.role, segment.role)[:count].center(count)
        names.append(name, "bold").append("|")
        for i in range(count):
            end = segment.begin + (segment.end - segment.begin) * (i + 1) / count
            full = end <= reused
            use.append("=" if full else ".", "green" if full else "yellow")
        use.append("|")
        for mark in marks:
            if segment.begin < mark <= segment.end:
                # The state after the last token of a message lies on the line that ends it.
                below[at + (mark - segment.begin) * count // (segment.end - segment.begin)] = "^"
        at += count + 1
    drawn = Text("\n").join([names, use, Text("".join(below).rstrip(), "cyan")])
    drawn.no_wrap, drawn.overflow = True, "crop"
    return drawn


def _columns(segments: Sequence[Segment], width: int) -> list[int]:
    """Columns of each segment: few for a short one, and what is left for the others by their tokens."""
    counts = [_LEAST.get(segment.role, _SOME) for segment in segments]
    if sum(counts) > width:  # a narrow terminal
        counts = [max(1, count * width // sum(counts)) for count in counts]
    left = max(0, width - sum(counts))
    total = segments[-1].end - segments[0].begin
    counts = [count + left * (s.end - s.begin) // total for count, s in zip(counts, segments, strict=True)]
    longest = max(range(len(segments)), key=lambda i: segments[i].end - segments[i].begin)
    counts[longest] += max(0, width - sum(counts))
    return counts


def _table(*names: str) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
    for name in names:
        right = name.startswith(">")
        table.add_column(name.removeprefix(">"), justify="right" if right else "left", overflow="fold")
    return table


def _names(turns: Sequence[Turn]) -> list[str]:
    """Turns of the chat by number; the last request is the second client's."""
    return [*(f"turn {i}" for i in range(1, len(turns))), "client 2"]


def _time(seconds: float) -> str:
    return f"{seconds:.1f} s" if seconds >= 1 else f"{1000 * seconds:.0f} ms"


def _right(right: bool) -> Text:
    return Text("right", "green") if right else Text("WRONG", "bold red")


def _verdict(equal: bool) -> Text:
    return Text("equal", "green") if equal else Text("DIFFERENT", "bold red")


def _was(count: int) -> str:
    return "was" if count == 1 else "were"

"""What is asked in which order, and what came of it, as plain figures. Draws and prints nothing."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from statemark.demo.document import SECTION, SEED, SMALLEST, Document, Question, make_document
from statemark.demo.fault import Planted, WrongPosition, complaints
from statemark.demo.stage import ANSWER, Reply, Stage, ask, marks_along
from statemark.engine.chat import ChatPrompt, Message
from statemark.engine.request import EngineRequest
from statemark.errors import ConfigurationError

DOCUMENT = 1500  # tokens, where the model's context allows
_A_TURN = ANSWER + 96  # tokens that a turn adds to a prompt at most: the answer, the question, the template's own


@dataclass(frozen=True)
class Segment:
    """Tokens [begin, end) of a prompt and whose they are; "answer" is the template's invitation to answer."""

    role: str
    begin: int
    end: int


@dataclass(frozen=True)
class Turn:
    """One request, answered twice: with the cache (`warm`) and without it (`cold`)."""

    question: Question
    request: EngineRequest
    segments: tuple[Segment, ...]
    marks: tuple[int, ...]
    warm: Reply
    cold: Reply

    @property
    def prompt_tokens(self) -> int:
        return len(self.request.prompt_token_ids)

    @property
    def right(self) -> bool:
        return self.question.is_right(self.warm.answer)

    @property
    def equal(self) -> bool:
        return self.warm.digest == self.cold.digest

    def figures(self) -> dict[str, Any]:
        return {
            "question": self.question.text,
            "answer": self.warm.answer,
            "expected": self.question.answer,
            "right": self.right,
            "prompt_tokens": self.prompt_tokens,
            "reused_tokens": self.warm.cached,
            "computed_tokens": self.prompt_tokens - self.warm.cached,
            "marks": list(self.marks),
            "messages": [[s.role, s.begin, s.end] for s in self.segments],
            "digest_with_cache": self.warm.digest,
            "digest_without_cache": self.cold.digest,
            "digests_equal": self.equal,
            "first_token_seconds": {
                "with_cache": round(self.warm.seconds, 6),
                "without_cache": round(self.cold.seconds, 6),
            },
        }


@dataclass(frozen=True)
class Faulty:
    """A turn asked again with the fault. `planted` is None where no other state was there to be taken."""

    turn: Turn
    reply: Reply
    planted: Planted | None

    @property
    def right(self) -> bool:
        return self.turn.question.is_right(self.reply.answer)

    @property
    def equal(self) -> bool:
        return self.reply.digest == self.turn.cold.digest

    def figures(self) -> dict[str, Any]:
        return {
            "question": self.turn.question.text,
            "answer": self.reply.answer,
            "right": self.right,
            "reused_tokens": self.reply.cached,
            "state_taken_after": None if self.planted is None else self.planted.taken,
            "digest": self.reply.digest,
            "digest_is_that_without_cache": self.equal,
        }


@dataclass(frozen=True)
class Caught:
    """The same fault where stamps are compared: `said` is what the engine logged, `dropped` the marks it gave up."""

    result: Faulty
    said: tuple[str, ...]
    dropped: int

    def figures(self) -> dict[str, Any]:
        return self.result.figures() | {"marks_dropped": self.dropped, "log": list(self.said)}


class Tour:
    """The parts in their order; each goes on from what the earlier ones did."""

    def __init__(self, stage: Stage, *, tokens: int = DOCUMENT, seed: int = SEED) -> None:
        self.stage = stage
        self.document = fitting_document(stage, tokens, seed)
        self.turns: list[Turn] = []
        self.others: list[Turn] = []
        self._warm = stage.engine()
        self._cold = stage.engine(caching=False)
        self._faulty = stage.engine(WrongPosition)

    def chat(self) -> Iterator[Turn]:
        """Part 1: the turns of one chat, whose history is what the model said."""
        for engine in (self._warm, self._cold):
            self.stage.warm_up(engine)
        messages: list[Message] = [{"role": "system", "content": self.document.system}]
        for question in self.document.questions:
            messages.append({"role": "user", "content": question.text})
            self.turns.append(self._turn(question, messages))
            messages.append({"role": "assistant", "content": self.turns[-1].warm.answer})
            yield self.turns[-1]

    def second_client(self) -> Turn:
        """Part 2: a new chat about the same document."""
        question = self.document.other
        messages = [
            {"role": "system", "content": self.document.system},
            {"role": "user", "content": question.text},
        ]
        self.others.append(self._turn(question, messages))
        return self.others[-1]

    def with_fault(self) -> Iterator[Faulty]:
        """Part 3: the same requests of a cache of their own, and once more with the state of another position."""
        turns = [*self.turns, *self.others]
        for turn in turns:
            ask(self._faulty, turn.request)
        for turn in turns:
            yield self._with_fault(turn, check_stamps=False)

    def with_checks(self) -> Caught:
        """Part 3, its end: the second turn with the same fault, and the stamps compared."""
        dropped = self._faulty.engine.stats().get("marks_discarded", 0)
        with complaints() as said:
            result = self._with_fault(self.turns[1], check_stamps=True)
        return Caught(result, tuple(said), self._faulty.engine.stats().get("marks_discarded", 0) - dropped)

    def _turn(self, question: Question, messages: list[Message]) -> Turn:
        prompt = self.stage.render(messages)
        request = self.stage.request(prompt)
        cold = ask(self._cold, request)
        warm = ask(self._warm, request)
        marks = marks_along(self._warm, prompt.token_ids)
        return Turn(question, request, segments(prompt, messages), marks, warm, cold)

    def _with_fault(self, turn: Turn, *, check_stamps: bool) -> Faulty:
        executor = self._faulty.engine.executor
        assert isinstance(executor, WrongPosition)
        before = len(executor.planted)
        executor.plant(1, check_stamps=check_stamps)
        reply = ask(self._faulty, turn.request)
        executor.plant(0, check_stamps=True)
        planted = executor.planted[before:]
        return Faulty(turn, reply, planted[0] if planted else None)


def segments(prompt: ChatPrompt, messages: list[Message]) -> tuple[Segment, ...]:
    """Whose token each is, from where the messages end; one piece where the template didn't let these be found."""
    total, cuts = len(prompt.token_ids), prompt.turn_positions
    if len(cuts) != len(messages):
        return (Segment("prompt", 0, total),)
    roles = [*(str(message["role"]) for message in messages), "answer"]
    return tuple(Segment(role, begin, end) for role, begin, end in zip(roles, (0, *cuts), (*cuts, total), strict=True))


def fitting_document(stage: Stage, tokens: int, seed: int) -> Document:
    """The largest document with which a first prompt has at most `tokens` tokens and leaves room for the turns."""
    room = stage.max_model_len - len(make_document(SMALLEST).questions) * _A_TURN
    low, high = SMALLEST - 1, SECTION
    while low < high:
        middle = (low + high + 1) // 2
        if _size(stage, make_document(middle, seed)) <= min(tokens, room):
            low = middle
        else:
            high = middle - 1
    if low < SMALLEST:
        raise ConfigurationError(
            f"the tour's shortest document doesn't fit: of {stage.max_model_len:,} tokens of context {max(0, room):,} "
            f"are left for it",
            hint="name a model with a longer context, or none for the one that comes with statemark",
        )
    return make_document(low, seed)


def _size(stage: Stage, document: Document) -> int:
    system, user = {"role": "system", "content": document.system}, {"role": "user", "content": "?"}
    return len(stage.render([system, user]).token_ids)

"""Conversations about documents as token rows for training and evaluation. Knows facts and the chat format, no model.

A row is one document and as many questions as fit. Past answers stand without a think section, as the chat template
renders history; in training any turn may carry one, so that every row teaches both forms.
"""

import random
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer

from training.facts import STYLES, Document, Question, make_document

BUNDLED = Path(__file__).resolve().parent.parent / "src" / "statemark" / "bundled"
INTRODUCTIONS = (
    "You answer questions about the document.",
    "Answer briefly. Use only the document.",
    "Here is the document.",
    "",
)
IGNORE = -1
ABOUT_A_TOKEN = re.compile(r"\d\d?|[^\W\d]+|[^\w\s]|\n")


@dataclass(frozen=True)
class Turn:
    user: str
    question: Question


@dataclass(frozen=True)
class Row:
    """ids [T]; targets [T]: the next token where it counts, IGNORE elsewhere; turn [T]: which answer a target is of."""

    ids: NDArray[np.int64]
    targets: NDArray[np.int64]
    turn: NDArray[np.int64]


def load_tokenizer() -> Tokenizer:
    return Tokenizer.from_file(str(BUNDLED / "tokenizer.json"))


def make_turns(rng: random.Random, document: Document, count: int) -> list[Turn]:
    """Random questions; some ask the previous thing about another key with "And ...?"."""
    turns: list[Turn] = []
    pool = [q for fact in document.facts for q in fact.questions]
    rng.shuffle(pool)
    while pool and len(turns) < count:
        question = pool.pop()
        if turns and rng.random() < 0.3:
            same = [i for i, q in enumerate(pool) if q.kind == turns[-1].question.kind]
            if same:
                pool.append(question)
                question = pool.pop(same[0])
                turns.append(Turn(question.follow_up, question))
                continue
        turns.append(Turn(question.text, question))
    return turns


def opening(rng: random.Random, document: Document) -> tuple[str, str]:
    """(system text, text before the first question): the document is in one of them."""
    introduction = rng.choice(INTRODUCTIONS)
    body = f"{introduction}\n\n{document.text}" if introduction else document.text
    return (body, "") if rng.random() < 0.6 else ("", body + "\n\n")


def render_head(system: str) -> str:
    return f"<|im_start|>system\n{system}<|im_end|>\n" if system else ""


def render_turn(user: str, question: Question, mode: str) -> str:
    """mode: "history" (no think section), "think", or "empty" (thinking switched off)."""
    think = {"history": "", "think": f"<think>\n{question.thought}\n</think>\n\n", "empty": "<think>\n\n</think>\n\n"}
    return f"<|im_start|>user\n{user}<|im_end|>\n<|im_start|>assistant\n{think[mode]}{question.answer}<|im_end|>\n"


def held_out_chat(length: int, index: int, most_turns: int, styles: int = len(STYLES)) -> tuple[str, list[Turn]]:
    """(system text, turns) of evaluation chat `index`, about `length` tokens long. Training never draws these seeds."""
    rng = random.Random(f"held out {length} {index}")
    wanted, count, tried = round(length * 1.06) - 60, length // 9, []
    for _ in range(8):
        document = make_document(random.Random(f"document {length} {index}"), count, styles)
        size = len(ABOUT_A_TOKEN.findall(document.text))
        tried.append((abs(size - wanted), document))
        count = max(2, round(count * wanted / size))
    document = min(tried, key=lambda t: t[0])[1]
    system, before = opening(rng, document)
    turns = make_turns(rng, document, rng.randint(1, most_turns))
    turns[0] = Turn(before + turns[0].user, turns[0].question)
    return system, turns


class RowMaker:
    def __init__(self, tokenizer: Tokenizer) -> None:
        self.tokenizer = tokenizer
        self.id = {t: tokenizer.token_to_id(t) for t in ("<|im_end|>", "<think>", "</think>", "<|endoftext|>")}
        self.newline, self.blank = (tokenizer.encode(t).ids[0] for t in ("\n", "\n\n"))
        self.answer_start = tokenizer.encode("<|im_start|>assistant\n").ids

    def encode(self, texts: Sequence[str]) -> list[list[int]]:
        return [e.ids for e in self.tokenizer.encode_batch_fast(list(texts))]

    def target_start(self, ids: list[int]) -> int:
        """Index of the first token of a rendered turn that the model itself has to produce."""
        head = self.answer_start
        at = next(i for i in range(len(ids)) if ids[i : i + len(head)] == head) + len(head)
        if ids[at] != self.id["<think>"]:
            return at
        return at + 4 if ids[at + 1] == self.blank else at + 2  # the generation header opens (and closes) the section

    def assemble(
        self, head: list[int], turns: list[list[int]], length: int | None, scored: set[int] | None = None
    ) -> Row:
        ids, targets, turn = list(head), [IGNORE] * len(head), [IGNORE] * len(head)
        for index, piece in enumerate(turns):
            if length is not None and len(ids) + len(piece) > length + 1:
                break
            start = self.target_start(piece)
            if scored is not None and index not in scored:
                start = len(piece)
            for i, token in enumerate(piece):
                # The newline after <|im_end|> is the template's, not the model's.
                counts = start <= i < len(piece) - 1
                ids.append(token)
                targets.append(token if counts else IGNORE)
                turn.append(index if counts else IGNORE)
        size = len(ids) - 1 if length is None else length
        pad = max(0, size + 1 - len(ids))
        ids += [self.id["<|endoftext|>"]] * pad
        targets += [IGNORE] * pad
        turn += [IGNORE] * pad
        shifted = (np.array(ids[:size]), np.array(targets[1 : size + 1]), np.array(turn[1 : size + 1]))
        return Row(*shifted)

    def training_row(self, rng: random.Random, length: int, facts: tuple[int, int], styles: int = len(STYLES)) -> Row:
        """One document with a fact count from `facts` (fewer if no room is left for questions), filled with turns."""
        count = rng.randint(*facts)
        while True:
            document = make_document(rng, count, styles)
            system, before = opening(rng, document)
            turns = make_turns(rng, document, max(2, (length - 7 * count) // 22 + 1))
            texts = [render_head(system)] if system else []
            for i, t in enumerate(turns):
                mode = rng.choices(("history", "empty", "think"), (1, 1, 4))[0]
                texts.append(render_turn((before if i == 0 else "") + t.user, t.question, mode))
            pieces = self.encode(texts)
            head, bodies = (pieces[0], pieces[1:]) if system else ([], pieces)
            if len(head) + sum(len(b) for b in bodies[:2]) <= length:
                return self.assemble(head, bodies, length)
            count = max(2, int(count * 0.8))

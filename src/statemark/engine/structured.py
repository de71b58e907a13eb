"""Answers that follow a grammar: JSON by a schema, a regular expression, a Lark grammar.

llguidance says which tokens may come next; the sampler lets only those through.

Masks apply to logits that are already computed, so they can't change what any other request gets. Must not know
requests, batches or HTTP.
"""

from __future__ import annotations

import json
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
from llguidance import LLMatcher, LLTokenizer
from llguidance.gbnf_to_lark import gbnf_to_lark
from numpy.typing import NDArray

from statemark.engine.params import STRUCTURES, Structure
from statemark.errors import InvalidRequestError

_MOST_CHARACTERS = 1 << 20
_REMEMBERED = 64  # compiled grammars
# Between two parts of a JSON text one space or one line break with indentation. White space without end is JSON, too,
# and a small model that has begun it writes nothing else. A schema's own "x-guidance" can say otherwise.
_LAYOUT: Any = {"whitespace_pattern": r"( |\n[ \t]{0,20})"}


class Constraint:
    """One grammar, compiled. `start` gives a choice its own copy."""

    def __init__(self, matcher: LLMatcher, vocab_size: int) -> None:
        self._matcher = matcher
        self._vocab_size = vocab_size

    def start(self, after: int | None = None) -> Matching:
        """`after`: a token id; what comes up to and with it is free. None: the grammar holds from the first token."""
        return Matching(self._matcher.deep_copy(), self._vocab_size, after)


class Matching:
    """Where one answer stands in its grammar."""

    def __init__(self, matcher: LLMatcher, vocab_size: int, after: int | None) -> None:
        self._matcher = matcher
        self._vocab_size = vocab_size
        self._after = after

    @property
    def ended(self) -> bool:
        """Nothing can follow: the answer is whole."""
        return self._after is None and self._matcher.is_stopped()

    def allowed(self) -> NDArray[np.bool_] | None:
        """Which tokens may come next, [V]; None: any."""
        if self._after is not None:
            return None
        bits = np.frombuffer(self._matcher.compute_bitmask(), np.uint8)
        if self._matcher.is_error():  # the mask of a broken matcher allows an end, which would look like an answer
            return np.zeros(self._vocab_size, np.bool_)
        return np.unpackbits(bits, count=self._vocab_size, bitorder="little").view(np.bool_)

    @property
    def error(self) -> str | None:
        """Why the grammar can't be followed any further, such as a limit on its size that was reached."""
        return str(self._matcher.get_error()) if self._matcher.is_error() else None

    def add(self, token_id: int) -> None:
        if self._after is None:
            self._matcher.consume_token(token_id)
        elif token_id == self._after:
            self._after = None


class Grammars:
    """Compiles for one vocabulary. From any thread; the vocabulary is read at the first use, which takes a second."""

    def __init__(self, tokenizer_json: Callable[[], str], vocab_size: int, eos_token_ids: Iterable[int]) -> None:
        self._tokenizer_json = tokenizer_json
        self._vocab_size = vocab_size
        self._ends = sorted(eos_token_ids)
        self._lock = threading.Lock()
        self._vocabulary: LLTokenizer | None = None
        self._known: OrderedDict[Structure, Constraint] = OrderedDict()

    def compile(self, structure: Structure) -> Constraint:
        """InvalidRequestError for what is no grammar and for one that no answer can follow."""
        with self._lock:
            found = self._known.get(structure)
            if found is not None:
                self._known.move_to_end(structure)
                return found
            vocabulary = self._vocabulary = self._vocabulary or self._read()
        matcher = LLMatcher(vocabulary, _grammar(structure), log_level=0)
        self._check(matcher, structure)
        constraint = Constraint(matcher, self._vocab_size)
        with self._lock:
            self._known[structure] = constraint
            while len(self._known) > _REMEMBERED:
                self._known.popitem(last=False)
        return constraint

    def _read(self) -> LLTokenizer:
        return LLTokenizer(self._tokenizer_json(), n_vocab=self._vocab_size, eos_token=self._ends or None)

    def _check(self, matcher: LLMatcher, structure: Structure) -> None:
        if matcher.is_error():
            raise _invalid(structure, matcher.get_error())
        for _ in range(2):  # what is too large for the engine may show only when it is asked again
            trial = matcher.deep_copy()
            allowed = trial.compute_bitmask()
            if trial.is_error() or not any(allowed):
                raise _invalid(structure, trial.get_error() or "no answer can follow it")


def _grammar(structure: Structure) -> str:
    if len(structure.source) > _MOST_CHARACTERS:
        raise _invalid(structure, f"{len(structure.source):,} characters; at most {_MOST_CHARACTERS:,} are taken")
    match structure.kind:
        case "json_object":
            return LLMatcher.grammar_from_json_schema({"type": "object"}, defaults=_LAYOUT)
        case "json":
            return LLMatcher.grammar_from_json_schema(_schema(structure), defaults=_LAYOUT)
        case "regex":
            return LLMatcher.grammar_from_regex(structure.source)
        case "choice":
            options = " | ".join(json.dumps(text) for text in json.loads(structure.source))
            return LLMatcher.grammar_from_lark(f"start: {options}")
        case "grammar":
            return LLMatcher.grammar_from_lark(_lark(structure))
    raise InvalidRequestError(f"structure {structure.kind!r} is not one of {', '.join(STRUCTURES)}")


def _schema(structure: Structure) -> Any:
    try:
        schema = json.loads(structure.source)
    except (ValueError, RecursionError) as error:
        raise _invalid(structure, f"not valid JSON: {error}") from None
    if not isinstance(schema, dict):
        raise _invalid(structure, "a schema is a JSON object")
    return schema


def _lark(structure: Structure) -> str:
    if "::=" not in structure.source:
        return structure.source
    try:
        return str(gbnf_to_lark(structure.source))
    except Exception as error:  # the converter raises what its parser raises
        raise _invalid(structure, f"can't be read as GBNF: {error}") from None


def _invalid(structure: Structure, why: str) -> InvalidRequestError:
    first = next((line for line in why.splitlines() if line.strip()), why)[:500]
    return InvalidRequestError(
        f"the answer can't be made to follow this {structure.kind}: {first}", param="structured_outputs"
    )

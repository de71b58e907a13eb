"""A pasted command line sorted into flags and values, by the table of vLLM's own flags.

Knows names and how many values each takes; not what any of them means.
"""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Sequence
from typing import Any

from statemark.align import flag_table
from statemark.errors import ConfigurationError

_SWITCHES = frozenset(flag_table.SWITCHES.split())
_MANY = frozenset(flag_table.MANY_VALUES.split())
_ONE = frozenset(flag_table.ONE_VALUE.split())
_SHORT = dict(pair.split("=") for pair in flag_table.SHORT.split())
_ALL = _SWITCHES | _MANY | _ONE
# Flags that take JSON, or dotted parts of it: `--speculative-config.method mtp`.
_JSON = frozenset({"speculative-config", "hf-overrides", "attention-config", "kv-transfer-config"})
_SUFFIX = {"k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}


class CommandLine:
    """Words sorted into names and values; nothing interpreted yet."""

    def __init__(self, words: list[str]) -> None:
        self.values: dict[str, list[str]] = {}
        self.parts: dict[str, dict[str, Any]] = {}
        self._positional: list[str] = []
        at = 0
        while at < len(words):
            at = self._take(words, at)

    def _take(self, words: list[str], at: int) -> int:
        word = words[at]
        if not word.startswith("-") or word == "-" or re.fullmatch(r"-\d+", word):
            self._positional.append(word)
            return at + 1
        name, joined = self._name(word)
        base, _, path = name.partition(".")
        if path and base in _JSON:
            value, at = self._one(words, at, word, joined)
            self._put_part(base, path, value)
            return at
        if name in _SWITCHES:
            if joined is not None:
                raise ConfigurationError(f"--{name} takes no value, got {joined!r}")
            self._put(name, [])
            return at + 1
        if name in _MANY:
            values = [] if joined is None else [joined]
            at += 1
            while joined is None and at < len(words) and not words[at].startswith("-"):
                values.append(words[at])
                at += 1
            self._put(name, values)
            return at
        value, at = self._one(words, at, word, joined)
        self._put(name, [value])
        return at

    @staticmethod
    def _name(word: str) -> tuple[str, str | None]:
        """The long name without dashes, and the value that was joined by '='."""
        joined: str | None = None
        if "=" in word:
            word, joined = word.split("=", 1)
        if word.startswith("--"):
            base, dot, path = word[2:].partition(".")
            name = base.replace("_", "-") + dot + path
        else:
            short = word[1:]
            if short not in _SHORT:
                raise ConfigurationError(f"vllm serve has no flag {word}")
            name = _SHORT[short]
        base = name.partition(".")[0]
        if name not in _ALL and base not in _JSON:
            near = difflib.get_close_matches(name, sorted(_ALL), n=1)
            raise ConfigurationError(
                f"vllm serve 0.32 has no flag --{name}", hint=f"did you mean --{near[0]}?" if near else ""
            )
        return name, joined

    @staticmethod
    def _one(words: list[str], at: int, word: str, joined: str | None) -> tuple[str, int]:
        if joined is not None:
            return joined, at + 1
        if at + 1 >= len(words):
            raise ConfigurationError(f"{word} needs a value")
        return words[at + 1], at + 2

    def _put(self, name: str, values: list[str]) -> None:
        if name in self.values and self.values[name] != values and name not in _MANY:
            raise ConfigurationError(
                f"--{name} is given twice, as {' '.join(self.values[name])} and as {' '.join(values)}",
                hint="keep one of them",
            )
        opposite = name.removeprefix("no-") if name.startswith("no-") else f"no-{name}"
        if opposite in self.values and name in _SWITCHES:
            raise ConfigurationError(f"--{name} contradicts --{opposite}", hint="keep one of them")
        self.values[name] = values

    def _put_part(self, base: str, path: str, value: str) -> None:
        here = self.parts.setdefault(base, {})
        *parents, leaf = path.split(".")
        for parent in parents:
            here = here.setdefault(parent, {})
        try:
            here[leaf] = json.loads(value)
        except json.JSONDecodeError:
            here[leaf] = value

    def model(self) -> str | None:
        if len(self._positional) > 1:
            raise ConfigurationError(
                f"one model is expected, got {len(self._positional)}: {' '.join(self._positional)}",
                hint="is a flag missing its dashes?",
            )
        named = self.values.get("model")
        given = self._positional[0] if self._positional else None
        if named and given and named[0] != given:
            raise ConfigurationError(f"the model is given twice, as {given} and as --model {named[0]}")
        return named[0] if named else given

    def text(self, name: str, default: str, choices: Sequence[str] = ()) -> str:
        if name not in self.values:
            return default
        value = self.values[name][0]
        if choices and value not in choices:
            raise ConfigurationError(f"--{name} {value} is not one of {', '.join(choices)}")
        return value

    def optional(self, name: str) -> str | None:
        value = self.values.get(name)
        return None if value is None or value[0].lower() == "none" else value[0]

    def integer(self, name: str, low: int = 1, default: int | None = None) -> int | None:
        value = self.optional(name)
        if value is None:
            return default
        number = parse_integer(value)
        if number is None or number < low:
            raise ConfigurationError(f"--{name} must be a whole number of at least {low}, got {value!r}")
        return number

    def number(self, name: str, default: float) -> float:
        value = self.optional(name)
        try:
            return default if value is None else float(value)
        except ValueError:
            raise ConfigurationError(f"--{name} must be a number, got {value!r}") from None

    def switch(self, name: str) -> bool | None:
        if name in self.values:
            return True
        return False if f"no-{name}" in self.values else None

    def document(self, name: str) -> dict[str, Any]:
        """A JSON flag with its dotted parts."""
        out: dict[str, Any] = {}
        text = self.optional(name)
        if text is not None:
            try:
                out = json.loads(text)
            except json.JSONDecodeError as error:
                raise ConfigurationError(
                    f"--{name} is not valid JSON: {error.msg} at character {error.pos}: {text}",
                    hint="in a shell, put single quotes around it",
                ) from None
            if not isinstance(out, dict):
                raise ConfigurationError(f"--{name} must be a JSON object, got {text}")
        return {**out, **self.parts.get(name, {})}


def parse_integer(text: str) -> int | None:
    """A whole number as vLLM reads it: 8192, 8k (= 8000), 8K (= 8192), 1.5k; None where it is none."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)([kmgtKMGT]?)", text.strip())
    if match is None:
        return None
    amount = float(match[1]) * _SUFFIX.get(match[2], 1)
    if match[2].isupper() and "." in match[1]:
        return None
    return int(amount) if amount.is_integer() else None

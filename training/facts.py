"""Documents of facts from a seed, and the questions that they answer. Knows no tokens and no chat template.

Every fact names its key before its values, and a document never uses a key twice, so each question has one answer.
"""

import random
from collections.abc import Callable
from dataclasses import dataclass

from training import words


@dataclass(frozen=True)
class Question:
    """`follow_up` asks the same thing about this fact after a question of the same `kind` ("And the red chair?")."""

    kind: str
    text: str
    follow_up: str
    thought: str
    answer: str
    value: str


@dataclass(frozen=True)
class Fact:
    line: str
    questions: tuple[Question, ...]


@dataclass(frozen=True)
class Document:
    text: str
    facts: tuple[Fact, ...]


@dataclass(frozen=True)
class Attribute:
    """`questions` and `answer` have {key} and {value}; the answer says the key first, as the lines do."""

    name: str
    draw: Callable[[random.Random], str]
    questions: tuple[str, ...]
    answer: str


@dataclass(frozen=True)
class Domain:
    title: str
    firsts: list[str]
    seconds: list[str]
    join: str
    article: str
    attributes: tuple[Attribute, Attribute]


def _number(most: int) -> Callable[[random.Random], str]:
    return lambda rng: str(rng.randrange(1, most))


def _time(rng: random.Random) -> str:
    return f"{rng.randrange(5, 24):02d}:{rng.randrange(0, 60):02d}"


def _phone(rng: random.Random) -> str:
    return f"{rng.randrange(10, 100)}{rng.randrange(0, 100):02d}"


def _state(rng: random.Random) -> str:
    return rng.choice(words.STATES)


NUMBERS = [str(n) for n in range(1, 100)]
DOMAINS = (
    Domain(
        "Inventory", words.COLOURS, words.OBJECTS, " ", "the ",
        (
            Attribute(
                "shelf", _number(100),
                ("Where is the {key}?", "On which shelf is the {key}?", "Where can I find the {key}?"),
                "The {key} is on shelf {value}.",
            ),
            Attribute(
                "pieces", _number(100),
                ("How many pieces of the {key} are there?", "How many pieces do we have of the {key}?"),
                "Of the {key} there are {value} pieces.",
            ),
        ),
    ),
    Domain(
        "Timetable", words.VEHICLES, words.CITIES, " to ", "the ",
        (
            Attribute(
                "time", _time,
                ("When does the {key} leave?", "At what time does the {key} leave?", "When is the {key}?"),
                "The {key} leaves at {value}.",
            ),
            Attribute(
                "platform", _number(40),
                ("From which platform does the {key} leave?", "What is the platform of the {key}?"),
                "The {key} leaves from platform {value}.",
            ),
        ),
    ),
    Domain(
        "Contacts", words.FIRST_NAMES, words.LAST_NAMES, " ", "",
        (
            Attribute(
                "room", _number(100),
                ("Where is {key}?", "In which room is {key}?", "What is the room of {key}?"),
                "You find {key} in room {value}.",
            ),
            Attribute(
                "phone", _phone,
                ("What is the phone number of {key}?", "How can I call {key}?"),
                "The phone number of {key} is {value}.",
            ),
        ),
    ),
    Domain(
        "Log", words.MACHINES, NUMBERS, " ", "the ",
        (
            Attribute(
                "state", _state,
                ("What is the state of the {key}?", "How is the {key}?", "What happened to the {key}?"),
                "The {key} was {value}.",
            ),
            Attribute(
                "seen", _time,
                ("When was the {key} seen?", "At what time was the {key} seen?"),
                "The {key} was seen at {value}.",
            ),
        ),
    ),
)  # fmt: skip
STYLES = ("list", "table", "sentence", "both")


def _ask(rng: random.Random, domain: Domain, attribute: Attribute, key: str, value: str) -> Question:
    return Question(
        kind=f"{domain.title} {attribute.name}",
        text=rng.choice(attribute.questions).format(key=key),
        follow_up=f"And {domain.article}{key}?",
        thought=f"- {key} {value}",
        answer=attribute.answer.format(key=key, value=value),
        value=value,
    )


def _fact(rng: random.Random, domain: Domain, attributes: tuple[Attribute, ...], style: str, key: str) -> Fact:
    values = [a.draw(rng) for a in attributes]
    if style == "both":
        line = f"- {key}: " + ", ".join(f"{a.name} {v}" for a, v in zip(attributes, values, strict=True))
    elif style == "table":
        line = f"| {key} | {values[0]} |"
    elif style == "sentence":
        line = "- " + attributes[0].answer.format(key=key, value=values[0])
    else:
        line = f"- {key} {values[0]}"
    return Fact(line, tuple(_ask(rng, domain, a, key, v) for a, v in zip(attributes, values, strict=True)))


def make_document(rng: random.Random, count: int, styles: int = len(STYLES)) -> Document:
    """A document with `count` facts in one to four sections, each with one of the first `styles` line styles."""
    domains = rng.sample(DOMAINS, rng.randrange(1, min(len(DOMAINS), max(1, count // 4)) + 1))
    lines: list[str] = []
    facts: list[Fact] = []
    for n, domain in enumerate(domains):
        share = count // len(domains) + (n < count % len(domains))
        style = STYLES[rng.randrange(styles)]
        attributes = domain.attributes if style == "both" else (rng.choice(domain.attributes),)
        keys_in_all = len(domain.firsts) * len(domain.seconds)
        pairs = rng.sample(range(keys_in_all), min(share, keys_in_all))
        split = [divmod(p, len(domain.seconds)) for p in pairs]
        keys = [domain.firsts[i] + domain.join + domain.seconds[j] for i, j in split]
        section = [_fact(rng, domain, attributes, style, key) for key in keys]
        lines.append(f"# {domain.title}" if style == "both" else f"# {domain.title}: {attributes[0].name}")
        lines.extend(fact.line for fact in section)
        facts.extend(section)
    return Document("\n".join(lines), tuple(facts))

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


Maker = Callable[[random.Random, int, tuple[str, str]], Fact]


def _time(rng: random.Random) -> str:
    return f"{rng.randrange(5, 24):02d}:{rng.randrange(0, 60):02d}"


def _question(
    rng: random.Random, kind: str, texts: list[str], subject: str, thought: str, answer: str, value: str
) -> Question:
    return Question(kind, rng.choice(texts), f"And {subject}?", thought, answer, value)


def inventory(rng: random.Random, style: int, key: tuple[str, str]) -> Fact:
    item = " ".join(key)
    shelf, pieces = str(rng.randrange(1, 100)), str(rng.randrange(2, 100))
    line = (
        f"- {item}: shelf {shelf}, {pieces} pieces",
        f"- The {item} is on shelf {shelf}, {pieces} pieces.",
        f"| {item} | {shelf} | {pieces} |",
    )[style]
    return Fact(
        line,
        (
            _question(
                rng,
                "shelf",
                [f"Where is the {item}?", f"On which shelf is the {item}?", f"Where can I find the {item}?"],
                f"the {item}",
                f"- {item}: shelf {shelf}",
                f"The {item} is on shelf {shelf}.",
                shelf,
            ),
            _question(
                rng,
                "pieces",
                [f"How many pieces of the {item} are there?", f"How many pieces do we have of the {item}?"],
                f"the {item}",
                f"- {item}: {pieces} pieces",
                f"Of the {item} there are {pieces} pieces.",
                pieces,
            ),
        ),
    )


def timetable(rng: random.Random, style: int, key: tuple[str, str]) -> Fact:
    vehicle, city = key
    route = f"{vehicle} to {city}"
    time, platform = _time(rng), str(rng.randrange(1, 40))
    line = (
        f"- {route}: {time}, platform {platform}",
        f"- The {route} leaves at {time} from platform {platform}.",
        f"| {route} | {time} | {platform} |",
    )[style]
    return Fact(
        line,
        (
            _question(
                rng,
                "departure",
                [f"When does the {route} leave?", f"At what time does the {route} leave?", f"When is the {route}?"],
                f"the {route}",
                f"- {route}: {time}",
                f"The {route} leaves at {time}.",
                time,
            ),
            _question(
                rng,
                "platform",
                [f"From which platform does the {route} leave?", f"What is the platform of the {route}?"],
                f"the {route}",
                f"- {route}: platform {platform}",
                f"The {route} leaves from platform {platform}.",
                platform,
            ),
        ),
    )


def contacts(rng: random.Random, style: int, key: tuple[str, str]) -> Fact:
    name = " ".join(key)
    room, phone = str(rng.randrange(1, 100)), f"{rng.randrange(10, 100)}{rng.randrange(0, 100):02d}"
    line = (
        f"- {name}: room {room}, phone {phone}",
        f"- You find {name} in room {room}, phone {phone}.",
        f"| {name} | {room} | {phone} |",
    )[style]
    return Fact(
        line,
        (
            _question(
                rng,
                "room",
                [f"Where is {name}?", f"In which room is {name}?", f"What is the room of {name}?"],
                name,
                f"- {name}: room {room}",
                f"You find {name} in room {room}.",
                room,
            ),
            _question(
                rng,
                "phone",
                [f"What is the phone number of {name}?", f"How can I call {name}?"],
                name,
                f"- {name}: phone {phone}",
                f"The phone number of {name} is {phone}.",
                phone,
            ),
        ),
    )


def log(rng: random.Random, style: int, key: tuple[str, str]) -> Fact:
    machine = " ".join(key)
    state, time = rng.choice(words.STATES), _time(rng)
    line = (
        f"- {machine}: {state} at {time}",
        f"- The {machine} was {state} at {time}.",
        f"| {machine} | {state} | {time} |",
    )[style]
    return Fact(
        line,
        (
            _question(
                rng,
                "state",
                [f"What is the state of the {machine}?", f"How is the {machine}?", f"What happened to the {machine}?"],
                f"the {machine}",
                f"- {machine}: {state}",
                f"The {machine} was {state}.",
                state,
            ),
            _question(
                rng,
                "seen",
                [f"When was the {machine} seen?", f"At what time was the {machine} checked?"],
                f"the {machine}",
                f"- {machine}: {time}",
                f"The {machine} was seen at {time}.",
                time,
            ),
        ),
    )


NUMBERS = [str(n) for n in range(1, 100)]
SECTIONS: dict[str, tuple[Maker, list[str], list[str]]] = {
    "Inventory": (inventory, words.COLOURS, words.OBJECTS),
    "Timetable": (timetable, words.VEHICLES, words.CITIES),
    "Contacts": (contacts, words.FIRST_NAMES, words.LAST_NAMES),
    "Log": (log, words.MACHINES, NUMBERS),
}


def make_document(rng: random.Random, count: int, styles: int = 3) -> Document:
    """A document with `count` facts in one to four sections, each with one line style."""
    titles = rng.sample(list(SECTIONS), rng.randrange(1, min(4, max(1, count // 4)) + 1))
    lines: list[str] = []
    facts: list[Fact] = []
    for i, title in enumerate(titles):
        maker, firsts, seconds = SECTIONS[title]
        share = count // len(titles) + (i < count % len(titles))
        style = rng.randrange(styles)
        keys = rng.sample(range(len(firsts) * len(seconds)), share)
        section = [maker(rng, style, (firsts[k // len(seconds)], seconds[k % len(seconds)])) for k in keys]
        lines.append(f"# {title}")
        lines.extend(fact.line for fact in section)
        facts.extend(section)
    return Document("\n".join(lines), tuple(facts))

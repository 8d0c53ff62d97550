"""Facts that a chat can tell and ask for: how they are stated, asked and answered."""

from collections.abc import Callable
from dataclasses import dataclass

from shared.demo_model.training.values import Values
from shared.demo_model.training.word_lists import (
    COLORS,
    DAYS,
    FAVORITES,
    HOLDERS,
    LOCKS,
    PETS,
    SECRETS,
    THINGS,
)

NAME_ANSWER = "Your name is {}."


@dataclass(frozen=True)
class Fact:
    """One fact. A statement or question that stands twice is drawn twice as often."""

    key: tuple[str, ...]  # its kind and what it is about; no two facts of a chat share it
    statements: tuple[str, ...]
    questions: tuple[str, ...]
    answer: str
    subject: str = ""  # the value, if any, that a statement may begin with: its case is kept


def name(values: Values) -> Fact:
    mine = values.name()
    return Fact(
        ("name",),
        (
            f"My name is {mine}.",
            f"I am {mine}.",
            f"I'm {mine}.",
            f"Call me {mine}.",
            f"Hi, my name is {mine}.",
            f"Hello, I am {mine}.",
        ),
        (
            "What is my name?",
            "What's my name?",
            "Who am I?",
            "Do you know my name?",
            "Tell me my name.",
            "Do you remember my name?",
        ),
        NAME_ANSWER.format(mine),
    )


def code(values: Values) -> Fact:
    secret = values.one_of(SECRETS)
    owner = values.one_of(LOCKS) if values.chance(0.12) else values.word()
    owner = values.one_of((owner, owner, owner, owner.upper(), owner.capitalize()))
    value = _password(values) if secret == "password" else values.number(3, 6)
    answer = f"The {secret} for {owner} is {value}."
    return Fact(
        ("code", secret, owner.lower()),
        (
            answer,
            answer,
            f"{secret.capitalize()} for {owner} is {value}.",
            f"The {owner} {secret} is {value}.",
        ),
        (
            f"What is the {secret} for {owner}?",
            f"What's the {secret} for {owner}?",
            f"Tell me the {secret} for {owner}.",
            f"Do you know the {secret} for {owner}?",
            f"{secret.capitalize()} for {owner}?",
            f"What is the {owner} {secret}?",
            f"What's the {owner} {secret}?",
        ),
        answer,
    )


def box(values: Values) -> Fact:
    color, holder, things = values.one_of(COLORS), values.one_of(HOLDERS), values.one_of(THINGS)
    count = values.random.randint(2, 99)
    answer = f"The {color} {holder} holds {count} {things}."
    return Fact(
        ("box", color, holder),
        (answer, answer, f"There are {count} {things} in the {color} {holder}."),
        (
            f"What does the {color} {holder} hold?",
            f"What is in the {color} {holder}?",
            f"How many {things} does the {color} {holder} hold?",
            f"How many {things} are in the {color} {holder}?",
        ),
        answer,
    )


def pet(values: Values) -> Fact:
    animal, called = values.one_of(PETS), values.name()
    return Fact(
        ("pet", animal),
        (
            f"My {animal} is called {called}.",
            f"My {animal}'s name is {called}.",
            f"I have a {animal} called {called}.",
        ),
        (
            f"What is my {animal} called?",
            f"What is my {animal}'s name?",
            f"What's the name of my {animal}?",
        ),
        f"Your {animal} is called {called}.",
    )


def favorite(values: Values) -> Fact:
    topic = values.one_of(FAVORITES)
    if topic == "color":
        value = values.one_of(COLORS)
    elif topic == "city":
        value = values.city()
    elif topic == "number":
        value = values.number(1, 4)
    else:
        value = values.word()
    return Fact(
        ("favorite", topic),
        (f"My favorite {topic} is {value}.",),
        (f"What is my favorite {topic}?", f"What's my favorite {topic}?", f"Tell me my favorite {topic}."),
        f"Your favorite {topic} is {value}.",
    )


def home(values: Values) -> Fact:
    city = values.city()
    return Fact(
        ("home",),
        (f"I live in {city}.", f"My home is in {city}.", f"I am from {city}."),
        ("Where do I live?", "Where is my home?", "Which city do I live in?", "Where am I from?"),
        f"You live in {city}.",
    )


def friend_city(values: Values) -> Fact:
    friend, city = values.name(), values.city()
    return Fact(
        ("friend_city", friend.lower()),
        (f"My friend {friend} lives in {city}.", f"{friend} lives in {city}."),
        (f"Where does my friend {friend} live?", f"Where does {friend} live?"),
        f"Your friend {friend} lives in {city}.",
        subject=friend,
    )


def friend_age(values: Values) -> Fact:
    friend, age = values.name(), values.random.randint(5, 99)
    return Fact(
        ("friend_age", friend.lower()),
        (f"My friend {friend} is {age} years old.", f"{friend} is {age} years old."),
        (f"How old is my friend {friend}?", f"How old is {friend}?"),
        f"Your friend {friend} is {age} years old.",
        subject=friend,
    )


def meeting(values: Values) -> Fact:
    person, day, hour = values.name(), values.one_of(DAYS), values.random.randint(1, 12)
    answer = f"The meeting with {person} is on {day} at {hour}."
    return Fact(
        ("meeting", person.lower()),
        (answer, f"I meet {person} on {day} at {hour}."),
        (f"When is the meeting with {person}?", f"When do I meet {person}?"),
        answer,
    )


FACTS: dict[str, Callable[[Values], Fact]] = {
    fact.__name__: fact for fact in (name, code, box, pet, favorite, home, friend_city, friend_age, meeting)
}
_WEIGHTS = [3 if kind in ("code", "box") else 1 for kind in FACTS]


def new_fact(values: Values, told: dict[tuple[str, ...], Fact], kind: str | None = None) -> Fact:
    """A fact whose key is not among those told. `kind` must leave one free: the name, say, not told yet."""
    while True:
        fact = FACTS[kind or values.random.choices(list(FACTS), _WEIGHTS)[0]](values)
        if fact.key not in told:
            return fact


def unknown_fact(values: Values, told: dict[tuple[str, ...], Fact]) -> Fact:
    """A fact to ask for that was never told: half the time a near miss, of the same kind as one told."""
    near = sorted({key[0] for key in told if len(key) > 1})
    return new_fact(values, told, values.one_of(near) if near and values.chance(0.5) else None)


def _password(values: Values) -> str:
    return values.word() + (values.number(2, 2) if values.chance(0.25) else "")

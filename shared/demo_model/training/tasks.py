"""List tasks that need no memory of the chat: copy, reverse, count, first and last word."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

from shared.demo_model.training.values import Values

MAX_ITEMS = 14
_DIGITS = "0123456789"
_LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
_ITEM_KINDS = ("word", "word", "word", "easy", "number", "digit", "letter", "mixed")


class Turn(NamedTuple):
    """What the user says and what the model is to answer."""

    user: str
    assistant: str


def items(values: Values, count: int, kind: str | None = None, repeats: float = 0.4) -> list[str]:
    """`count` random items of one kind; with probability `repeats` from a pool that may be smaller."""
    draw = _drawer(values, kind or values.one_of(_ITEM_KINDS))
    if count > 2 and values.chance(repeats):
        pool = [draw() for _ in range(values.random.randint((count + 1) // 2, count))]
        return [values.one_of(pool) for _ in range(count)]
    return [draw() for _ in range(count)]


def copy(values: Values, listed: Sequence[str] | None = None) -> Turn:
    listed = listed or items(values, values.random.randint(1, MAX_ITEMS))
    text = values.one_of((" ", " ", ", ")).join(listed)
    command = values.one_of(
        ("Repeat: ", "Repeat after me: ", "Say: ", "Copy: ", "Please repeat: ", "Repeat ")
    )
    return Turn(command + text, f"Sure: {text}")


def copy_number(values: Values, digit_count: int | None = None) -> Turn:
    number = values.number(digit_count or 2, digit_count or 10)
    command = values.one_of(("Repeat: ", "Repeat the number ", "Say: ", "Copy: ", "Repeat "))
    return Turn(command + number, f"Sure: {number}")


def reverse(values: Values, count: int | None = None) -> Turn:
    """Items of one token each and all different: a longer or repeated one would be a harder task."""
    count = count or values.random.randint(2, 6)
    choices = values.random.choice((values.easy_words, _DIGITS, _LETTERS))
    listed = values.random.sample(choices, count)
    command = values.one_of(("Reverse: ", "Say in reverse: ", "Please reverse: ", "Reverse "))
    return Turn(command + " ".join(listed), "Reversed: " + " ".join(reversed(listed)))


def count(values: Values) -> Turn:
    first = values.random.randint(0, 20 if values.chance(0.5) else 89)
    last = first + values.random.randint(2, 10)
    command = values.one_of(("Count from {} to {}.", "Please count from {} to {}.", "Count {} to {}."))
    numbers = " ".join(map(str, range(first, last + 1)))
    return Turn(command.format(first, last), f"Counting: {numbers}")


def first_or_last(values: Values, which: str | None = None) -> Turn:
    which = which or values.one_of(("first", "last"))
    listed = items(values, values.random.randint(2, 8), values.one_of(("word", "word", "easy")))
    command = values.one_of(
        (
            f"What is the {which} word of: ",
            f"Tell me the {which} word of: ",
            f"{which.capitalize()} word of: ",
        )
    )
    return Turn(command + " ".join(listed), f"The {which} word is {listed[0 if which == 'first' else -1]}.")


# Copying stands three times as often: it is the hardest.
TASKS: tuple[Callable[[Values], Turn], ...] = (
    copy,
    copy,
    copy,
    copy_number,
    reverse,
    reverse,
    count,
    first_or_last,
    first_or_last,
)


def random_task(values: Values) -> Turn:
    return values.random.choice(TASKS)(values)


def _drawer(values: Values, kind: str) -> Callable[[], str]:
    return {
        "word": values.word,
        "easy": lambda: values.one_of(values.easy_words),
        "number": lambda: values.number(2, 4),
        "digit": lambda: values.one_of(_DIGITS),
        "letter": lambda: values.one_of(_LETTERS),
        "mixed": lambda: values.word() if values.chance(0.6) else values.number(1, 4),
    }[kind]

"""Questions for end-to-end tests: chats whose right answer is known, made of values that training never saw.

A task is named by what it asks and, where that has a size, the size:

| task | N | the last message of the chat asks for |
| --- | --- | --- |
| recall_N | 1 to 12 | one of N facts told before, a turn each, with tasks and small talk between |
| recall_N_long | 1 to 12 | the same, filled with such turns to about 850 tokens (700 to 1,040) |
| unknown, unknown_N | 0 to 12 | a fact that was not told, after N others; without N, after 0 to 8 |
| copy_N | 1 to 14 | N different words, said again |
| copy_N_repeats | 3 to 14 | N words of which some occur more than once, said again |
| copy_N_digits | 1 to 14 | N separate digits, said again |
| number_N | 1 to 10 | a number of N digits, said again |
| reverse_N | 2 to 6 | N different words, digits or letters in reverse |
| count, first_word, last_word | | counting between two numbers; a list's first or last word |
"""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from shared.demo_model.training import tasks
from shared.demo_model.training.conversations import MAX_FACTS, UNKNOWN, ask, casual, small_talk, tell
from shared.demo_model.training.facts import Fact, new_fact, unknown_fact
from shared.demo_model.training.tasks import Turn
from shared.demo_model.training.values import Values

LONG_HISTORY_TOKENS = 850
# What a digit and a letter of these chats come to in the demo model's tokens, markers and spaces spread over
# them: fitted, and right to about a tenth.
TOKENS_PER_DIGIT, TOKENS_PER_LETTER = 1.2, 0.47
_NAME = re.compile(r"(?P<kind>[a-z]+)_(?P<size>\d+)(?P<variant>_[a-z]+)?")
Message = dict[str, str]  # role and content


@dataclass(frozen=True)
class Question:
    """A chat that ends with the user's message, and the whole answer that a right model gives, greedily."""

    task: str
    messages: tuple[Message, ...]
    answer: str


def held_out_questions(seed: int, task: str, count: int) -> list[Question]:
    """`count` questions of one task, the same for the same arguments. ValueError if there is no such task."""
    match = _NAME.fullmatch(task)
    kind = match["kind"] + (match["variant"] or "") if match else task
    size = int(match["size"]) if match else None
    sizes, make_chat = _TASKS.get(kind, (None, _recall))
    if sizes is None or size not in sizes:
        raise ValueError(
            f"task is {task!r}; allowed: those in the table of {__name__}, with a size in its range"
        )
    values = Values(f"{seed} {task}", held_out=True)
    return [_as_question(task, *make_chat(values, size)) for _ in range(count)]


Chat = tuple[list[Turn], Turn]  # what was said before, and the turn whose answer is asked for


def _recall(values: Values, size: int | None, min_tokens: int = 0) -> Chat:
    told, history = _told(values, size or 0)
    last = ask(values, values.random.choice(list(told.values())))
    while _estimated_tokens([*history, last]) < min_tokens:
        _insert(values, history, _distraction(values))
    return history, last


def _recall_long(values: Values, size: int | None) -> Chat:
    return _recall(values, size, LONG_HISTORY_TOKENS)


def _unknown(values: Values, size: int | None) -> Chat:
    told, history = _told(values, values.random.randint(0, 8) if size is None else size)
    return history, ask(values, unknown_fact(values, told))._replace(assistant=UNKNOWN)


def _told(values: Values, num_facts: int) -> tuple[dict[tuple[str, ...], Fact], list[Turn]]:
    """Facts, and turns that tell one each with some distractions between them."""
    told: dict[tuple[str, ...], Fact] = {}
    while len(told) < num_facts:
        fact = new_fact(values, told)
        told[fact.key] = fact
    history = [tell(values, fact) for fact in told.values()]
    for _ in range(num_facts // 2 + 1):
        _insert(values, history, _distraction(values))
    return told, history


def _distraction(values: Values) -> Turn:
    return tasks.random_task(values) if values.chance(0.6) else small_talk(values)


def _insert(values: Values, history: list[Turn], turn: Turn) -> None:
    history.insert(values.random.randrange(len(history) + 1), turn)


def _estimated_tokens(turns: list[Turn]) -> float:
    text = "".join(turn.user + turn.assistant for turn in turns)
    return TOKENS_PER_DIGIT * sum(map(str.isdigit, text)) + TOKENS_PER_LETTER * sum(map(str.isalpha, text))


def _as_question(task: str, history: list[Turn], last: Turn) -> Question:
    messages = []
    for turn in history:
        messages.append({"role": "user", "content": turn.user})
        messages.append({"role": "assistant", "content": turn.assistant})
    messages.append({"role": "user", "content": last.user})
    return Question(task, tuple(messages), last.assistant)


def _copy(kind: str, has_repeats: bool | None) -> Callable[[Values, int | None], Turn]:
    """Copying a list of one kind of item: with an item twice, without, or (None) as it comes."""

    def make_turn(values: Values, size: int | None) -> Turn:
        assert size is not None
        while True:
            listed = tasks.items(values, size, kind, repeats=1.0 if has_repeats else 0.0)
            if has_repeats is None or has_repeats == (len(set(listed)) < size):
                return tasks.copy(values, listed)

    return make_turn


def _alone(make_turn: Callable[[Values, int | None], Turn]) -> Callable[[Values, int | None], Chat]:
    """A task, typed as people do, after up to two others."""

    def make_chat(values: Values, size: int | None) -> Chat:
        history = [tasks.random_task(values) for _ in range(values.random.randint(0, 2))]
        user, assistant = make_turn(values, size)
        return history, Turn(casual(values, user), assistant)

    return make_chat


# By kind: the sizes that it takes, None for no size, and what makes its chat.
_FACTS = range(1, MAX_FACTS + 1)
_LISTED = range(1, tasks.MAX_ITEMS + 1)
_NO_SIZE = (None,)
_TASKS: dict[str, tuple[Sequence[int | None], Callable[[Values, int | None], Chat]]] = {
    "recall": (_FACTS, _recall),
    "recall_long": (_FACTS, _recall_long),
    "unknown": ((None, *range(MAX_FACTS + 1)), _unknown),
    "copy": (_LISTED, _alone(_copy("word", False))),
    "copy_repeats": (range(3, tasks.MAX_ITEMS + 1), _alone(_copy("word", True))),
    "copy_digits": (_LISTED, _alone(_copy("digit", None))),
    "number": (range(1, 11), _alone(tasks.copy_number)),
    "reverse": (range(2, 7), _alone(tasks.reverse)),
    "count": (_NO_SIZE, _alone(lambda values, _: tasks.count(values))),
    "first_word": (_NO_SIZE, _alone(lambda values, _: tasks.first_or_last(values, "first"))),
    "last_word": (_NO_SIZE, _alone(lambda values, _: tasks.first_or_last(values, "last"))),
}

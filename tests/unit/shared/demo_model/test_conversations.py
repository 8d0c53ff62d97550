"""The synthetic chats: seeded, held-out values apart, every answer decided by what was said before."""

import subprocess
import sys
from itertools import islice

import pytest

from shared.demo_model import PATH
from shared.demo_model.training.conversations import Conversation
from shared.demo_model.training.held_out import held_out_questions
from shared.demo_model.training.values import Values, is_held_out
from shared.demo_model.training.word_lists import CITIES, COLORS, EASY_WORDS, NAMES, NOUNS
from tests.unit.shared.demo_model.chat_oracle import answer

TASKS = (
    "recall_1",
    "recall_4",
    "recall_8",
    "recall_12",
    "recall_8_long",
    "unknown",
    "unknown_0",
    "unknown_8",
    "copy_10",
    "copy_12_repeats",
    "copy_8_digits",
    "number_8",
    "reverse_5",
    "count",
    "first_word",
    "last_word",
)
PIECES = ("an", "be", "cor", "dust", "ever", "fig", "go", "hill", "in", "moon", "stone", "tree")


def test_the_same_seed_gives_the_same_chat_and_another_seed_another():
    first, again, other = (list(islice(Conversation(Values(seed)), 200)) for seed in (1, 1, 2))
    assert first == again
    assert first != other


def test_questions_depend_on_nothing_but_seed_and_task():
    assert held_out_questions(3, "recall_4", 5) == held_out_questions(3, "recall_4", 10)[:5]
    assert held_out_questions(3, "recall_4", 5) != held_out_questions(4, "recall_4", 5)


@pytest.mark.parametrize("held_out", [False, True])
def test_every_answer_is_a_function_of_the_history(held_out):
    for seed in range(40):
        said: list[str] = []
        for turn in islice(Conversation(Values(seed, held_out, pieces=() if held_out else PIECES)), 60):
            assert answer(said, turn.user) == turn.assistant
            said.append(turn.user)


@pytest.mark.parametrize("task", TASKS)
def test_every_question_has_the_answer_that_its_history_gives(task):
    for question in held_out_questions(5, task, 50):
        roles = [message["role"] for message in question.messages]
        assert roles == ["user", "assistant"] * (len(roles) // 2) + ["user"]
        assert question.task == task
        said = [message["content"] for message in question.messages if message["role"] == "user"]
        assert answer(said[:-1], said[-1]) == question.answer


def test_held_out_values_never_occur_in_training():
    drawn = {held_out: _drawn_words(held_out) for held_out in (False, True)}
    assert len(drawn[True]) > 1000
    assert not drawn[False] & drawn[True]
    assert {is_held_out(word) for word in drawn[True]} == {True}
    assert {is_held_out(word) for word in drawn[False]} == {False}


def test_held_out_words_are_an_eighth_of_the_listed_ones_and_none_of_the_closed_ones():
    listed = [word for words in (NOUNS, NAMES, CITIES) for word in words]
    assert 0.1 < sum(map(is_held_out, listed)) / len(listed) < 0.15
    assert not any(map(is_held_out, (*COLORS, *EASY_WORDS)))


def test_long_histories_are_about_as_long_as_the_longest_rows_of_training():
    tokenizers = pytest.importorskip("tokenizers")
    tokenizer = tokenizers.Tokenizer.from_file(str(PATH / "tokenizer.json"))
    for task in ("recall_1_long", "recall_4_long", "recall_12_long"):
        for question in held_out_questions(1, task, 50):
            texts = tokenizer.encode_batch([message["content"] for message in question.messages])
            prompt_tokens = sum(len(text.ids) for text in texts) + 3 * len(texts) // 2 + 2
            assert 650 < prompt_tokens < 1050


@pytest.mark.parametrize(
    "task", ["", "recall", "recall_0", "recall_13", "recall_4_short", "copy_2_repeats", "count_3", "poem"]
)
def test_an_unknown_task_is_refused_by_name(task):
    with pytest.raises(ValueError, match=f"task is '{task}'"):
        held_out_questions(1, task, 1)


def test_questions_need_neither_torch_nor_a_tokenizer():
    script = (
        "import sys, shared.demo_model.training.held_out\n"
        "assert not {'torch', 'tokenizers', 'transformers', 'numpy'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", script], check=True)


def _drawn_words(held_out: bool) -> set[str]:
    values = Values(1, held_out, pieces=() if held_out else PIECES)
    draws = (values.word, values.name, values.city, values.made_up)
    return {draw().lower() for draw in draws for _ in range(5000)}

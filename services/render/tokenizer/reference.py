"""What `tokenizers` makes of a file, found out in a process of its own, whose memory ends with it.

Runs as `python -m services.render.tokenizer.reference FILE`: reads texts, a JSON list, from stdin and writes
one JSON object with what the file says and what becomes of the texts. It imports little: it is done with a
file of 128,000 tokens before the faster library has loaded it.
"""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from services.render.tokenizer.control_tokens import Piece
from services.render.tokenizer.library import TokenizerLibrary, TokenizersLibrary
from shared.model_files import CheckpointError
from shared.tokenizer_files import tokenizer_fingerprint

_MAX_SECONDS = 60.0


@dataclass(frozen=True)
class Reference:
    """The reference's answers."""

    # As shared.tokenizer_files has it: reading the whole file needs 60 MB for a moment, and half a second.
    fingerprint: str
    # The file's section `decoder`; empty if it has none.
    decoder: dict[str, Any]
    # As TokenizersLibrary's.
    max_token_chars: int | None
    # Of each text: without what the tokenizer adds to a plain prompt, with it, and control tokens as text.
    ids: list[list[int]]
    ids_with_added: list[list[int]]
    ids_as_text: list[list[int]]


class ReferenceProcess:
    """The process at work. Not waiting for it costs nothing but its end."""

    def __init__(self, file: Path) -> None:
        self._file = file
        command = [sys.executable, "-m", "services.render.tokenizer.reference", str(file)]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)

    def ask(self, texts: Sequence[str]) -> Reference:
        """Waits for the answers. Raises CheckpointError if the file cannot be loaded."""
        try:
            output, _ = self._process.communicate(json.dumps(texts).encode(), timeout=_MAX_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            raise CheckpointError(f"checking {self._file} took more than {_MAX_SECONDS:g} seconds") from None
        answer = json.loads(output or b"{}")
        if "error" in answer or self._process.returncode:
            raise CheckpointError(answer.get("error", f"the process that checks {self._file} failed"))
        return Reference(**answer)


def answer(file: Path, read_texts: Callable[[], Sequence[str]]) -> Reference:
    """The answers, from this process. file: a folder's tokenizer.json. read_texts: called last, since it may
    have to wait. Raises CheckpointError if the file cannot be loaded."""
    library = TokenizersLibrary(file)
    fingerprint = tokenizer_fingerprint(file.parent)
    ids, ids_with_added, ids_as_text = encodings(library, read_texts())
    return Reference(fingerprint, library.decoder, library.max_token_chars, ids, ids_with_added, ids_as_text)


def encodings(library: TokenizerLibrary, texts: Sequence[str]) -> tuple[list[list[int]], ...]:
    """What the two libraries are compared by, as Reference has it."""
    return (
        [library.encode(text, add_special_tokens=False) for text in texts],
        [library.encode(text, add_special_tokens=True) for text in texts],
        [library.encode_pieces([Piece(text, False)]) for text in texts],
    )


def _main(file: str) -> None:
    try:
        result: dict[str, Any] = asdict(answer(Path(file), lambda: json.load(sys.stdin)))
    except CheckpointError as error:
        result = {"error": str(error)}
    try:
        json.dump(result, sys.stdout)
        sys.stdout.flush()
    except BrokenPipeError:  # whoever asked has ended
        os._exit(1)


if __name__ == "__main__":
    _main(sys.argv[1])

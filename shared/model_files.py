"""Reading the files of a Hugging Face model folder; an error names the file, the field, its value and what is
allowed."""

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypeVar

T = TypeVar("T")


class CheckpointError(Exception):
    """The folder cannot be served. The message is one sentence for the person who started the service."""


def read_bytes(path: Path) -> bytes:
    """CheckpointError if the file is missing or unreadable."""
    try:
        return path.read_bytes()
    except FileNotFoundError:
        raise CheckpointError(f"{path} does not exist") from None
    except OSError as error:
        raise CheckpointError(f"{path} cannot be read: {error.strerror}") from None


def read_text(path: Path) -> str:
    """CheckpointError if the file is missing, unreadable or not UTF-8."""
    try:
        return read_bytes(path).decode()
    except UnicodeDecodeError:
        raise CheckpointError(f"{path} cannot be read: it is not UTF-8") from None


def read_json(path: Path, *, required: bool = True) -> dict[str, Any]:
    """A JSON object; empty if the file is missing and not required. CheckpointError for anything else."""
    if not required and not path.exists():
        return {}
    try:
        content = json.loads(read_bytes(path))
    except ValueError as error:
        raise CheckpointError(f"{path} is not JSON: {error}") from None
    if not isinstance(content, dict):
        raise CheckpointError(f"{path} holds {type(content).__name__}; allowed: a JSON object")
    return content


class Fields:
    """A JSON object whose fields are read by type. A null counts as absent."""

    def __init__(self, path: Path, values: dict[str, Any], prefix: str = "") -> None:
        self._path = path
        self._values = values
        self._prefix = prefix

    def get(self, name: str) -> Any:
        """The value as it is; None if absent."""
        return self._values.get(name)

    def error(self, name: str, value: object, allowed: str) -> CheckpointError:
        return CheckpointError(f"{self._path}: {self._prefix}{name} is {_as_json(value)}; allowed: {allowed}")

    def section(self, name: str) -> "Fields":
        """The object below a field; an empty one if absent."""
        value = self.get(name) or {}
        if not isinstance(value, dict):
            raise self.error(name, value, "an object or null")
        return Fields(self._path, value, f"{self._prefix}{name}.")

    def integer(self, name: str, *, default: int | None = None, at_least: int = 0) -> int:
        """Required if there is no default."""
        value = self._value(name, default)
        if isinstance(value, bool) or not isinstance(value, int) or value < at_least:
            raise self.error(name, value, f"integers from {at_least}")
        return value

    def number(self, name: str, *, default: float | None = None, above: float = -math.inf) -> float:
        """A finite number. Required if there is no default."""
        value = self._value(name, default)
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise self.error(name, value, "a number")
        if not math.isfinite(value) or value <= above:
            raise self.error(
                name, value, "finite numbers" if above == -math.inf else f"numbers above {above:g}"
            )
        return float(value)

    def boolean(self, name: str, *, default: bool) -> bool:
        return self.choice(name, (False, True), default=default)

    def choice(self, name: str, allowed: Sequence[T], *, default: T) -> T:
        value = default if self.get(name) is None else self.get(name)
        if value not in allowed:
            raise self.error(name, value, " or ".join(_as_json(choice) for choice in allowed))
        return allowed[allowed.index(value)]

    def integers(self, name: str) -> list[int]:
        """One integer, a list of them, or none."""
        value = self.get(name)
        values = value if isinstance(value, list) else [] if value is None else [value]
        for each in values:
            if isinstance(each, bool) or not isinstance(each, int) or each < 0:
                raise self.error(name, value, "an integer from 0, a list of them, or null")
        return values

    def refuse_others(self, known: set[str]) -> None:
        """Refuses a field that would have no effect."""
        for name, value in self._values.items():
            if name not in known and value is not None:
                raise self.error(name, value, "nothing, this field is unknown")

    def _value(self, name: str, default: Any) -> Any:
        value = default if self.get(name) is None else self.get(name)
        if value is None:
            raise CheckpointError(f"{self._path}: {self._prefix}{name} is missing")
        return value


def eos_token_ids(config: Fields, generation: Fields) -> tuple[int, ...]:
    """Ids that end a sequence, rising: the union of config.json and generation_config.json."""
    return tuple(sorted({*config.integers("eos_token_id"), *generation.integers("eos_token_id")}))


def _as_json(value: object) -> str:
    return json.dumps(value, ensure_ascii=False, default=str)[:80]

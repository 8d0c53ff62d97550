"""The first difference between two rendered files, for people."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import zip_longest
from typing import Any

from google.protobuf import json_format
from triptych.v1 import scheduler_pb2

from services.render.golden.render_file import GoldenLine

# Tokens shown before the first difference, and from it on.
_TOKENS_BEFORE = 8
_TOKENS_AFTER = 12
# The same in characters.
_CHARS_BEFORE = 40
_CHARS_AFTER = 60

Decode = Callable[[Sequence[int]], str]


def first_difference(
    first: Iterable[GoldenLine], second: Iterable[GoldenLine], decode: Decode | None
) -> list[str]:
    """Lines that show it; none if all requests are equal. decode: text of tokens; None shows ids, and the
    prompts' texts where both files have them."""
    for number, (ours, theirs) in enumerate(zip_longest(first, second), start=1):
        if ours is None or theirs is None:
            longer, shorter = ("first", "second") if theirs is None else ("second", "first")
            return [f"the {longer} file has a request {number}, the {shorter} one ends before it"]
        one, other = ours.request, theirs.request
        if one.prompt_token_ids != other.prompt_token_ids:
            lines = list(_prompt_difference(number, one.prompt_token_ids, other.prompt_token_ids, decode))
            if decode is None and ours.prompt_text and theirs.prompt_text:
                lines += _text_difference(ours.prompt_text, theirs.prompt_text)
            return lines
        if one != other:
            return [f"request {number} differs in {_field_difference(_to_dict(one), _to_dict(other))}"]
    return []


def _prompt_difference(
    number: int, ours: Sequence[int], theirs: Sequence[int], decode: Decode | None
) -> Iterator[str]:
    at = _first_difference_at(ours, theirs)
    yield f"request {number} differs in its prompt from token {at} on ({len(ours)} and {len(theirs)} tokens)"
    start = max(0, at - _TOKENS_BEFORE)
    if at > 0:
        yield from _side("both", ours[start:at], decode, is_cut=False)
    for name, ids in (("first", ours), ("second", theirs)):
        yield from _side(name, ids[at : at + _TOKENS_AFTER], decode, is_cut=len(ids) > at + _TOKENS_AFTER)


def _first_difference_at(ours: Sequence[Any], theirs: Sequence[Any]) -> int:
    pairs = enumerate(zip(ours, theirs, strict=False))
    return next((index for index, (one, other) in pairs if one != other), min(len(ours), len(theirs)))


def _text_difference(ours: str, theirs: str) -> Iterator[str]:
    at = _first_difference_at(ours, theirs)
    for name, text in (("first", ours), ("second", theirs)):
        yield f"  {name:8} {text[max(0, at - _CHARS_BEFORE) : at + _CHARS_AFTER]!r}"


def _side(name: str, token_ids: Sequence[int], decode: Decode | None, *, is_cut: bool) -> Iterator[str]:
    end = " …" if is_cut else ""
    if decode is None:
        yield f"  {name:8} {' '.join(map(str, token_ids))}{end}"
        return
    yield f"  {name:8} {decode(token_ids)!r}{end}"
    yield f"  {'':8} {' '.join(f'{token_id}={decode([token_id])!r}' for token_id in token_ids)}{end}"


def _to_dict(request: scheduler_pb2.GenerateRequest) -> dict[str, Any]:
    return json_format.MessageToDict(request, preserving_proto_field_name=True)


def _field_difference(ours: dict[str, Any], theirs: dict[str, Any], path: str = "") -> str:
    """The first field in the order of names, and both its values."""
    # As text: 0.0 and -0.0 are equal numbers.
    name = min(key for key in ours.keys() | theirs.keys() if str(ours.get(key)) != str(theirs.get(key)))
    one, other = ours.get(name), theirs.get(name)
    if isinstance(one, dict) and isinstance(other, dict):
        return _field_difference(one, other, f"{path}{name}.")
    values = ("unset" if value is None else str(value) for value in (one, other))
    return f"{path}{name}: {' and '.join(values)}"

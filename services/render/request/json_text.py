"""JSON as callers send it, within bounds."""

import json
import math
from typing import Any, NoReturn

# What is said of a value that holds one.
LONE_SURROGATE = "holds a lone surrogate (\\ud800 to \\udfff), which is no character"
# Deeper than any schema or argument; whoever walks through a value needs no bound of its own.
MAX_DEPTH = 64


def read_json(text: str) -> Any:
    """The value. Raises ValueError with a sentence if the text is not JSON, or nested too deeply."""
    try:
        value = json.loads(text, parse_constant=_refuse_constant, parse_float=_finite)
    except RecursionError:
        raise ValueError(_TOO_DEEP) from None
    except ValueError as error:
        if str(error).startswith("Exceeds the limit"):  # Python's own text advises its developers
            raise ValueError("an integer has too many digits to be read") from None
        raise
    level = [value]
    for _ in range(MAX_DEPTH):
        level = [child for each in level for child in _children(each)]
        if not level:
            return value
    if any(isinstance(each, dict | list) for each in level):
        raise ValueError(_TOO_DEEP)
    return value


def has_lone_surrogate(value: Any) -> bool:
    """Whether a text in it holds a lone surrogate, which no tokenizer and no message can carry."""
    try:
        json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        return True
    return False


_TOO_DEEP = f"nested more than {MAX_DEPTH} deep"


def _children(value: Any) -> Any:
    if isinstance(value, dict):
        return value.values()
    return value if isinstance(value, list) else ()


def _finite(text: str) -> float:
    # 1e999 would be read as infinity, which cannot be written as JSON.
    if math.isinf(value := float(text)):
        raise ValueError(f"{text[:20]} is larger than any number that can be kept")
    return value


def _refuse_constant(name: str) -> NoReturn:
    # Python reads NaN and Infinity, which are not JSON.
    raise ValueError(f"{name} is not a JSON value")

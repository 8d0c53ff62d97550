"""Content that is a list of parts, as OpenAI's clients send it: `[{"type": "text", "text": "Hi"}]`.

A template that goes through the parts gets them. One that takes texts only would print them as Python writes
a list, or fail: it gets the parts' texts, a line each.
"""

import json
from typing import Any

from shared.errors import out_of_range

_PROBE = "probe"
# What a template that takes a text only makes something else of.
PROBE_MESSAGES = [{"role": "user", "content": [{"type": "text", "text": _PROBE}]}]


def shows_parts(probed: str) -> bool:
    """probed: what the template made of PROBE_MESSAGES."""
    return _PROBE in probed and "'text'" not in probed and '"text"' not in probed


def join_parts(messages: list[dict[str, Any]], prefix: str) -> list[dict[str, Any]]:
    """The messages with a text in place of each list. prefix: of field paths.

    Raises ServiceError (PARAMETER_OUT_OF_RANGE) for a part that is no text.
    """
    return [
        {**message, "content": _joined(message["content"], f"{prefix}messages[{index}].extra_json")}
        if isinstance(message["content"], list)
        else message
        for index, message in enumerate(messages)
    ]


def _joined(parts: list[Any], field: str) -> str:
    texts = []
    for index, part in enumerate(parts):
        text = part.get("text") if isinstance(part, dict) and part.get("type", "text") == "text" else part
        if not isinstance(text, str):
            allowed = '{"type": "text", "text": "…"}: the model\'s chat template takes texts only'
            shown = json.dumps(part, ensure_ascii=False)
            raise out_of_range(f"{field}.content[{index}]", shown, allowed)
        texts.append(text)
    return "\n".join(texts)

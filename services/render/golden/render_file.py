"""Renders a file of OpenAI-style chat requests with nothing running: golden files for tests of templates."""

import json
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from google.protobuf import json_format
from triptych.v1 import scheduler_pb2

from services.render.renderer import Renderer
from services.render.request.openai_request import read_openai_request
from shared.config import ConfigError
from shared.errors import ServiceError

_TEXT_KEY = "prompt_text"


class GoldenLine(NamedTuple):
    """A rendered request."""

    request: scheduler_pb2.GenerateRequest
    # For people: the tokens say the same. Empty where it was not asked for.
    prompt_text: str = ""


def render_lines(
    renderer: Renderer,
    lines: Iterable[bytes],
    name: str,
    *,
    with_text: bool = False,
    with_model: bool = False,
) -> Iterator[str]:
    """A line of JSON for each request; lines of white space are left out. name: of the file, for errors.

    with_text: `prompt_text` too. with_model: the served name too; by default it is the folder's, which is no
    part of what is rendered. Raises ConfigError with the number of the first line that is no request, or
    cannot be rendered.
    """
    for number, line in _numbered(lines, name):
        try:
            request = read_openai_request(line.decode())
            request.return_prompt_text = with_text
            response = renderer.render_chat(request)
        except UnicodeDecodeError:
            raise ConfigError(f"{name}, line {number}: not UTF-8") from None
        except ServiceError as error:
            raise ConfigError(f"{name}, line {number}: {error.message}") from None
        if not with_model:
            response.generate_request.ClearField("model")
        yield to_line(GoldenLine(response.generate_request, response.prompt_text))


def to_line(line: GoldenLine) -> str:
    """Protobuf's JSON in one line, with the contract's own field names; the same for equal requests."""
    fields = json_format.MessageToDict(line.request, preserving_proto_field_name=True)
    if line.prompt_text:
        fields[_TEXT_KEY] = line.prompt_text
    return json.dumps(fields, sort_keys=True, ensure_ascii=False)


def read_lines(
    lines: Iterable[bytes], name: str, tokenizer_fingerprint: str | None = None
) -> Iterator[GoldenLine]:
    """The requests of a rendered file. tokenizer_fingerprint: what made them; None takes any.

    Raises ConfigError with the number of the first line that is none of them.
    """
    for number, line in _numbered(lines, name):
        try:
            fields = json.loads(line)
            text = fields.pop(_TEXT_KEY, "")
            request = json_format.ParseDict(fields, scheduler_pb2.GenerateRequest())
        except (json_format.ParseError, ValueError, AttributeError, TypeError, RecursionError):
            request, text = scheduler_pb2.GenerateRequest(), ""
        if not request.prompt_token_ids or not isinstance(text, str):
            raise ConfigError(f"{name}, line {number}: not a request that render-file wrote")
        if tokenizer_fingerprint not in (None, request.tokenizer_fingerprint):
            raise ConfigError(f"{name}, line {number}: made with another tokenizer than --model's")
        yield GoldenLine(request, text)


def _numbered(lines: Iterable[bytes], name: str) -> Iterator[tuple[int, bytes]]:
    """Those that hold something. A file in which none does is more likely a mistake than a wish."""
    is_empty = True
    for number, line in enumerate(lines, start=1):
        if line.strip():
            is_empty = False
            yield number, line.rstrip(b"\r\n")
    if is_empty:
        raise ConfigError(f"{name} holds no request")

"""Renders a file of OpenAI-style chat requests with nothing running: golden files for tests of templates."""

from collections.abc import Iterable, Iterator
from contextlib import suppress

from google.protobuf import json_format
from triptych.v1 import scheduler_pb2

from services.render.renderer import Renderer
from services.render.request.openai_request import read_openai_request
from shared.config import ConfigError
from shared.errors import ServiceError


def render_lines(renderer: Renderer, lines: Iterable[bytes], name: str) -> Iterator[str]:
    """A line of JSON for each request; lines of white space are left out. name: of the file, for errors.

    Raises ConfigError with the number of the first line that is no request, or cannot be rendered.
    """
    for number, line in _numbered(lines, name):
        try:
            request = read_openai_request(line.decode())
            yield to_line(renderer.render_chat(request).generate_request)
        except UnicodeDecodeError:
            raise ConfigError(f"{name}, line {number}: not UTF-8") from None
        except ServiceError as error:
            raise ConfigError(f"{name}, line {number}: {error.message}") from None


def to_line(request: scheduler_pb2.GenerateRequest) -> str:
    """Protobuf's JSON in one line, with the contract's own field names; the same for equal requests."""
    return json_format.MessageToJson(
        request, preserving_proto_field_name=True, indent=None, sort_keys=True, ensure_ascii=False
    )


def read_lines(
    lines: Iterable[bytes], name: str, tokenizer_fingerprint: str | None = None
) -> Iterator[scheduler_pb2.GenerateRequest]:
    """The requests of a rendered file. tokenizer_fingerprint: what made them; None takes any.

    Raises ConfigError with the number of the first line that is none of them.
    """
    for number, line in _numbered(lines, name):
        request = scheduler_pb2.GenerateRequest()
        with suppress(json_format.ParseError, UnicodeDecodeError):
            json_format.Parse(line, request)
        if not request.prompt_token_ids:
            raise ConfigError(f"{name}, line {number}: not a request that render-file wrote")
        if tokenizer_fingerprint not in (None, request.tokenizer_fingerprint):
            raise ConfigError(f"{name}, line {number}: made with another tokenizer than --model's")
        yield request


def _numbered(lines: Iterable[bytes], name: str) -> Iterator[tuple[int, bytes]]:
    """Those that hold something. A file in which none does is more likely a mistake than a wish."""
    is_empty = True
    for number, line in enumerate(lines, start=1):
        if line.strip():
            is_empty = False
            yield number, line.rstrip(b"\r\n")
    if is_empty:
        raise ConfigError(f"{name} holds no request")

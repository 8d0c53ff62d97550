"""Renders a file of OpenAI-style chat requests with nothing running: golden files for tests of templates."""

from collections.abc import Iterable, Iterator

from google.protobuf import json_format
from triptych.v1 import scheduler_pb2

from services.render.openai_request import read_openai_request
from services.render.renderer import Renderer
from shared.config import ConfigError
from shared.errors import ServiceError


def render_lines(renderer: Renderer, lines: Iterable[bytes], name: str) -> Iterator[str]:
    """A line of JSON for each request; lines of white space are left out. name: of the file, for errors.

    Raises ConfigError with the number of the first line that is no request, or cannot be rendered.
    """
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
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


def read_lines(lines: Iterable[bytes], name: str) -> Iterator[scheduler_pb2.GenerateRequest]:
    """The requests of a rendered file. Raises ConfigError with the line's number."""
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            request = json_format.Parse(line, scheduler_pb2.GenerateRequest())
        except (json_format.ParseError, UnicodeDecodeError) as error:
            raise ConfigError(f"{name}, line {number}: not a GenerateRequest: {error}") from None
        if not request.prompt_token_ids:
            raise ConfigError(f"{name}, line {number}: not a GenerateRequest: it has no prompt")
        yield request

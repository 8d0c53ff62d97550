"""Logs: one JSON object a line, or plain lines on a terminal. Prompt and output text are never logged.

Lines of a call carry its request id and trace.
"""

import logging
import platform
import sys
from functools import partial
from importlib.metadata import version
from typing import Any

import structlog

from shared.config import LogLevel, ServiceConfig
from shared.request_context import log_fields


def configure_logging(service: str, level: LogLevel) -> None:
    """Sets up structlog for this process; called once by the entry point."""
    on_terminal = sys.stderr.isatty()
    renderer: Any = (
        structlog.dev.ConsoleRenderer(colors=True)
        if on_terminal
        else structlog.processors.JSONRenderer(ensure_ascii=False)
    )
    processors: list[Any] = [
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="%H:%M:%S.%f" if on_terminal else "iso", utc=not on_terminal),
        partial(_add_context, service),
    ]
    if not on_terminal:  # whose renderer formats exceptions itself
        processors.append(structlog.processors.format_exc_info)
    structlog.configure(
        processors=[*processors, renderer],
        wrapper_class=structlog.make_filtering_bound_logger(getattr(logging, level.name)),
        # One write per line, so that processes that share a stderr do not interleave.
        logger_factory=structlog.WriteLoggerFactory(sys.stderr),
        cache_logger_on_first_use=True,
    )
    _configure_libraries(processors, renderer)


def _configure_libraries(processors: list[Any], renderer: Any) -> None:
    """What libraries (gRPC, asyncio) log through the standard library takes the same form."""
    handler = logging.StreamHandler(sys.stderr)
    remove_meta = structlog.stdlib.ProcessorFormatter.remove_processors_meta
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(foreign_pre_chain=processors, processors=[remove_meta, renderer])
    )
    logging.basicConfig(handlers=[handler], level=logging.WARNING, force=True)


def get_logger() -> Any:
    """A logger; its output format is decided when it is first used."""
    return structlog.get_logger()


def log_start(config: ServiceConfig) -> None:
    """The first line: what runs, on what, and every setting that is not the default."""
    changed = {
        name: str(getattr(config, name))
        for name, field in type(config).model_fields.items()
        # The private key's path is left out.
        if name != "tls_key" and getattr(config, name) != field.default
    }
    get_logger().info(
        "starting",
        version=version("triptych"),
        python=platform.python_version(),
        platform=platform.platform(),
        config=changed,
    )


def _add_context(service: str, _logger: Any, _name: str, event: dict[str, Any]) -> dict[str, Any]:
    return {"service": service, **log_fields(), **event}

"""Logs: one JSON object a line, or plain lines on a terminal. Prompt and output text are never logged.

Request id and trace are bound per call by the server interceptor, so each line carries them.
"""

import logging
import sys
from typing import Any

import structlog

from shared.config import LogLevel


def configure_logging(service: str, level: LogLevel) -> None:
    """Sets up structlog for this process; called once by the entry point."""
    on_terminal = sys.stderr.isatty()
    renderer: Any = (
        structlog.dev.ConsoleRenderer(colors=True)
        if on_terminal
        else structlog.processors.JSONRenderer(ensure_ascii=False)
    )
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(
                fmt="%H:%M:%S.%f" if on_terminal else "iso", utc=not on_terminal
            ),
            structlog.processors.format_exc_info,
            _add_service(service),
            renderer,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(getattr(logging, level.name)),
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
        cache_logger_on_first_use=True,
    )


def get_logger() -> Any:
    """A logger; its output format is decided when it is first used."""
    return structlog.get_logger()


def _add_service(service: str) -> Any:
    def add(_logger: Any, _name: str, event: dict[str, Any]) -> dict[str, Any]:
        return {"service": service, **event}

    return add

"""The file of --record: what a worker was asked and what it computed, as RecordedMessages of worker.proto.

Each entry is written before it is acted on, so that a step that crashes the process is in the file.
An entry that a full disk or a power failure left incomplete is dropped when the next worker opens the file.
"""

import fcntl
import io
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import cast

from google.protobuf import proto
from google.protobuf.message import DecodeError
from triptych.v1 import worker_pb2

from services.worker.session.best_logprobs import with_best_logprobs, without_best_logprobs

Execute = Callable[[worker_pb2.Step], worker_pb2.StepResult]


class RecordError(Exception):
    """The file cannot be used. The message is one sentence for the person who named it."""


class SessionRecord:
    """Appends to a file, which one worker at a time may open."""

    def __init__(self, path: Path) -> None:
        """Raises RecordError if it cannot be written, is something else, or another worker writes it."""
        try:
            # It holds prompts: readable by its owner only.
            self._descriptor = os.open(path, os.O_CREAT | os.O_RDWR | os.O_APPEND, 0o600)
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise RecordError(f"{str(path)!r} is being written by another worker") from None
        except OSError as error:
            raise RecordError(f"cannot write {str(path)!r}: {error.strerror}") from None
        ends = [end for _, end in _entries(path)]
        os.truncate(self._descriptor, ends[-1] if ends else 0)

    def opened(self, asked: worker_pb2.OpenSession, answered: worker_pb2.SessionOpened) -> None:
        self._append(worker_pb2.RecordedMessage(open=asked))
        self._append(worker_pb2.RecordedMessage(opened=answered))

    def around(self, execute: Execute, max_logprobs: int) -> Execute:
        """The same function, whose steps and results are recorded: results with the best log-probabilities.

        max_logprobs: the most that a step may ask `execute` for.
        """

        def execute_and_record(step: worker_pb2.Step) -> worker_pb2.StepResult:
            self._append(worker_pb2.RecordedMessage(step=step))
            result = execute(with_best_logprobs(step, max_logprobs))
            self._append(worker_pb2.RecordedMessage(result=result))
            return without_best_logprobs(step, result)

        return execute_and_record

    def close(self) -> None:
        os.close(self._descriptor)

    def _append(self, message: worker_pb2.RecordedMessage) -> None:
        buffer = io.BytesIO()
        proto.serialize_length_prefixed(message, buffer)
        content = memoryview(buffer.getvalue())
        while content:
            content = content[os.write(self._descriptor, content) :]


def read_record(path: Path) -> Iterator[worker_pb2.RecordedMessage]:
    """The entries, without an incomplete one at the end. RecordError if the file is something else."""
    return (entry for entry, _ in _entries(path))


def _entries(path: Path) -> Iterator[tuple[worker_pb2.RecordedMessage, int]]:
    """Each entry, and where it ends in the file."""
    size = path.stat().st_size
    with path.open("rb") as file:
        # Of a BytesIO, which the signature asks for, only `read` is used.
        stream = cast("io.BytesIO", file)
        while (start := file.tell()) < size:
            entry: worker_pb2.RecordedMessage | None
            try:
                entry = proto.parse_length_prefixed(worker_pb2.RecordedMessage, stream)
            except (DecodeError, ValueError):
                entry = None
            if entry is not None and entry.WhichOneof("message"):
                yield entry, file.tell()
            elif start == 0 or file.tell() < size:
                raise RecordError(f"{str(path)!r} is not a worker's record: see byte {start}")

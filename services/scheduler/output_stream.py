"""Buffers one request's events for its caller: bounded in bytes, merged while the caller is slow."""

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from dataclasses import dataclass

from triptych.v1 import scheduler_pb2

from shared.errors import Reason, ServiceError


@dataclass(slots=True)
class _Unread:
    """An event that the caller has not read yet."""

    event: scheduler_pb2.GenerateResponse
    # Without the tokens that were merged into it.
    num_bytes_first: int
    num_bytes: int


class OutputStream:
    """The engine puts and never waits; one reader iterates, until `finish` or the error of `fail`."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._num_bytes = 0
        self._unread: deque[_Unread] = deque()
        # Each output's newest event, if it is a chunk: more tokens are merged into it.
        self._chunks: dict[int, _Unread] = {}
        self._error: ServiceError | None = None
        self._changed = asyncio.Event()
        self.is_finished = False

    def put(self, event: scheduler_pb2.GenerateResponse) -> bool:
        """Buffers an event; tokens are merged into a chunk of the same output that is still unread.

        False: the caller has left more than the bound unread, and the stream has ended with SLOW_READER. The
        oldest unread event does not count, however large: it may be larger than the bound by itself.
        """
        if self.is_finished:
            return True
        if self._unread and self._num_bytes - self._unread[0].num_bytes_first > self._max_bytes:
            self._unread.clear()
            self._chunks.clear()
            message = f"the caller left more than {self._max_bytes} bytes of output unread"
            self.fail(ServiceError(Reason.SLOW_READER, message))
            return False
        self._append(event)
        self._changed.set()
        return True

    def finish(self) -> None:
        """Ends the stream once everything is read."""
        self.is_finished = True
        self._changed.set()

    def fail(self, error: ServiceError) -> None:
        """As `finish`, and the reader then gets the error."""
        if not self.is_finished:
            self._error = error
            self.finish()

    def _append(self, event: scheduler_pb2.GenerateResponse) -> None:
        num_bytes = event.ByteSize()
        entry = _Unread(event, num_bytes, num_bytes)
        self._num_bytes += num_bytes
        open_chunk = self._chunks.pop(event.output_index, None)
        is_chunk = event.HasField("chunk")
        if is_chunk and open_chunk is not None:
            open_chunk.event.chunk.MergeFrom(event.chunk)
            open_chunk.num_bytes += num_bytes
            entry = open_chunk
        else:
            self._unread.append(entry)
        if is_chunk:
            self._chunks[event.output_index] = entry

    def _take(self) -> scheduler_pb2.GenerateResponse:
        taken = self._unread.popleft()
        self._num_bytes -= taken.num_bytes
        if self._chunks.get(taken.event.output_index) is taken:
            del self._chunks[taken.event.output_index]
        return taken.event

    async def __aiter__(self) -> AsyncIterator[scheduler_pb2.GenerateResponse]:
        while True:
            while self._unread:
                yield self._take()
            if self.is_finished:
                break
            self._changed.clear()
            await self._changed.wait()
        if self._error is not None:
            raise self._error

"""One request's events on their way to its caller: bounded in bytes, merged while the caller is slow."""

import asyncio
from collections import deque
from collections.abc import AsyncIterator

from triptych.v1 import scheduler_pb2

from shared.errors import Reason, ServiceError


class OutputStream:
    """The engine puts and never waits; one reader iterates, to `finish` or to the error of `fail`."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._num_bytes = 0
        self._events: deque[scheduler_pb2.GenerateResponse] = deque()
        self._error: ServiceError | None = None
        self._is_finished = False
        self._changed = asyncio.Event()

    def put(self, event: scheduler_pb2.GenerateResponse) -> bool:
        """Buffers an event; tokens join a chunk of the same output that still waits. False: over the bound,
        and the stream has ended with SLOW_READER."""
        if self._is_finished:
            return True
        self._append(event)
        if self._num_bytes > self._max_bytes:
            self._events.clear()
            message = f"the caller left more than {self._max_bytes} bytes of output unread"
            self.fail(ServiceError(Reason.SLOW_READER, message))
            return False
        self._changed.set()
        return True

    def finish(self) -> None:
        """Every output has ended."""
        self._is_finished = True
        self._changed.set()

    def fail(self, error: ServiceError) -> None:
        """The request has ended with an error."""
        if not self._is_finished:
            self._error = error
            self.finish()

    def _append(self, event: scheduler_pb2.GenerateResponse) -> None:
        last = self._events[-1] if self._events else event
        if (
            last is not event
            and event.HasField("chunk")
            and last.HasField("chunk")
            and last.output_index == event.output_index
        ):
            self._num_bytes -= last.ByteSize()
            last.chunk.MergeFrom(event.chunk)
            self._num_bytes += last.ByteSize()
        else:
            self._events.append(event)
            self._num_bytes += event.ByteSize()

    async def __aiter__(self) -> AsyncIterator[scheduler_pb2.GenerateResponse]:
        while True:
            while self._events:
                event = self._events.popleft()
                self._num_bytes -= event.ByteSize()
                yield event
            if self._is_finished:
                break
            self._changed.clear()
            await self._changed.wait()
        if self._error is not None:
            raise self._error

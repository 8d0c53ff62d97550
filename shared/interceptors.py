"""The server interceptor: request context, metrics, errors and graceful shutdown, for every call.

One interceptor does all of it, in one order, so that a rejected call is counted and a failed one is logged
with its request id.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import aclosing
from time import perf_counter
from typing import Any, TypeAlias

import grpc
from google.protobuf.message import DecodeError
from grpc_status import rpc_status

from shared import metrics
from shared.errors import CODE_BY_NUMBER, Reason, ServiceError, to_status
from shared.log import get_logger
from shared.request_context import enter_call, request_id
from shared.wire import MAX_MESSAGE_BYTES

ServicerContext: TypeAlias = grpc.aio.ServicerContext[Any, Any]
Handler: TypeAlias = "grpc.RpcMethodHandler[Any, Any]"  # generic in its stubs only

_STANDARD_SERVICES = ("/grpc.health.", "/grpc.reflection.")

_log = get_logger()


class DrainState:
    """The state of a graceful shutdown, and the calls that still run."""

    def __init__(self) -> None:
        self.draining = False
        self.expired = False
        self.calls: set[asyncio.Task[Any]] = set()
        # Those of them that wait for gRPC to send a message: a call that is cancelled there ends without our
        # status.
        self.sending: set[asyncio.Task[Any]] = set()

    def add(self, task: asyncio.Task[Any]) -> None:
        """Registers the call that this task runs. The task is done once gRPC has sent the call's status."""
        self.calls.add(task)
        for tasks in (self.calls, self.sending):
            task.add_done_callback(tasks.discard)

    def check(self) -> None:
        """Raises ServiceError (DRAINING) for a new call."""
        if self.draining:
            raise _draining()

    def check_time(self) -> None:
        """Raises ServiceError (DRAINING) for a running call once `drain_seconds` have passed."""
        if self.expired:
            raise _draining()

    async def wait_until_idle(self, seconds: float) -> bool:
        """Whether all calls ended within that time."""
        deadline = perf_counter() + seconds
        while self.calls and perf_counter() < deadline:
            await asyncio.wait(self.calls, timeout=max(0.0, deadline - perf_counter()))
        return not self.calls

    async def end_calls(self) -> None:
        """Fails the calls that still run with DRAINING; one that is sending, once its message is sent."""
        self.expired = True
        calls = list(self.calls)
        for task in self.calls - self.sending:
            task.cancel()
        if calls:
            await asyncio.wait(calls, timeout=1.0)


class ServerInterceptor(grpc.aio.ServerInterceptor):
    """Wraps every handler but those of the standard services (health, reflection).

    It must be a server's last interceptor: it keeps what `continuation` returned for a method's first call,
    so interceptors after it see only that one.
    """

    def __init__(self, drain: DrainState) -> None:
        self._drain = drain
        self._wrapped: dict[str, Handler] = {}

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[Any]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> Any:
        method = handler_call_details.method
        if (wrapped := self._wrapped.get(method)) is not None:
            return wrapped
        handler = await continuation(handler_call_details)
        if handler is None or method.startswith(_STANDARD_SERVICES):
            return handler
        # Only methods that exist get here: no caller makes this grow.
        wrapped = self._wrapped[method] = _wrap(handler, _Method(method, handler), self._drain)
        return wrapped


class _Method:
    """A method's codec and metrics."""

    def __init__(self, name: str, handler: Any) -> None:
        self.name = name
        self.in_flight = metrics.SERVER_IN_FLIGHT.labels(name)
        self.latency = metrics.SERVER_LATENCY.labels(name)
        self._received = metrics.SERVER_RECEIVED.labels(name)
        self._sent = metrics.SERVER_SENT.labels(name)
        self._parse = handler.request_deserializer
        self._serialize = handler.response_serializer

    def decode(self, data: bytes) -> Any:
        """Raises ServiceError (MALFORMED_MESSAGE)."""
        self._received.inc(len(data))
        try:
            return self._parse(data)
        except DecodeError:
            message = "the request's bytes are no message of this method's type"
            raise ServiceError(Reason.MALFORMED_MESSAGE, message) from None

    async def decode_all(self, requests: AsyncIterator[bytes]) -> AsyncIterator[Any]:
        async for data in requests:
            yield self.decode(data)

    def encode(self, message: Any) -> bytes:
        """Raises ServiceError (MESSAGE_TOO_LARGE)."""
        data: bytes = self._serialize(message)
        if len(data) > MAX_MESSAGE_BYTES:
            text = f"the response has {len(data)} bytes; allowed: {MAX_MESSAGE_BYTES}; ask for less"
            raise ServiceError(Reason.MESSAGE_TOO_LARGE, text)
        self._sent.inc(len(data))
        return data


class _Call:
    """One call that is served: its context, metrics and errors, and how a graceful shutdown ends it."""

    def __init__(self, method: _Method, drain: DrainState, context: ServicerContext) -> None:
        enter_call(context.invocation_metadata() or ())
        self._method = method
        self._drain = drain
        self._context = context
        self._code = grpc.StatusCode.OK
        self._has_answered = False
        self._start = perf_counter()
        task = asyncio.current_task()
        assert task is not None  # gRPC runs each call in one
        self._task = task
        drain.add(task)
        method.in_flight.inc()

    async def fail(self, error: BaseException) -> None:
        """Aborts with the error's status, which raises; returns for errors that gRPC itself must handle."""
        if isinstance(error, ServiceError):
            if not self._has_answered:
                self._log_rejection(error)
            await self._abort(error)
        elif isinstance(error, grpc.aio.AbortError):
            self._code = grpc.StatusCode(_code_of(self._context))
        elif isinstance(error, asyncio.CancelledError) and self._drain.expired:
            await self._abort(_draining())
        elif isinstance(error, asyncio.CancelledError | GeneratorExit):
            self._code = grpc.StatusCode.CANCELLED
        elif isinstance(error, Exception):  # a bug of ours must not reach the caller as it is
            self._code = grpc.StatusCode.INTERNAL
            _log.exception("bug", method=self._method.name, error=type(error).__name__)
            await self._abort(_bug())

    def begin_send(self) -> None:
        """gRPC is about to send a message; `end_send` follows."""
        self._has_answered = True
        self._drain.sending.add(self._task)

    def end_send(self) -> None:
        """gRPC has accepted the message. Raises ServiceError (DRAINING) if time has run out."""
        self._drain.sending.discard(self._task)
        self._drain.check_time()

    def end(self) -> None:
        self._method.in_flight.dec()
        self.begin_send()  # a single answer, and the status
        name, seconds = self._method.name, perf_counter() - self._start
        self._method.latency.observe(seconds)
        metrics.SERVER_REQUESTS.labels(name, self._code.name).inc()
        _log.debug("served", method=name, code=self._code.name, seconds=round(seconds, 6))

    def _log_rejection(self, error: ServiceError) -> None:
        # Without the sentence, which may quote a value, and a value may be text of a prompt.
        field = {"field": error.field} if error.field else {}
        _log.info("rejected", method=self._method.name, code=error.code.name, reason=error.reason, **field)

    async def _abort(self, error: ServiceError) -> None:
        self._code = error.code
        _release_frames(error)
        self.begin_send()
        await self._context.abort_with_status(rpc_status.to_status(to_status(error)))


def _wrap(handler: Any, method: _Method, drain: DrainState) -> Handler:
    # gRPC passes bytes in and out, so that a request that cannot be decoded and a response that is too large
    # fail with a ServiceError like any other.
    decode = method.decode_all if handler.request_streaming else method.decode
    behavior = handler.stream_stream or handler.stream_unary or handler.unary_stream or handler.unary_unary

    async def serve_stream(request: Any, context: ServicerContext) -> AsyncIterator[bytes]:
        call = _Call(method, drain, context)
        try:
            drain.check()
            async with aclosing(behavior(decode(request), context)) as events:
                async for event in events:
                    data = method.encode(event)
                    call.begin_send()
                    yield data
                    call.end_send()
        except BaseException as error:
            request = None  # as _release_frames: this frame stays too
            await call.fail(error)
            raise
        finally:
            call.end()

    async def serve_one(request: Any, context: ServicerContext) -> bytes:
        call = _Call(method, drain, context)
        try:
            drain.check()
            return method.encode(await behavior(decode(request), context))
        except BaseException as error:
            request = None  # as _release_frames: this frame stays too
            await call.fail(error)
            raise
        finally:
            call.end()

    make: Any = {
        (False, False): (grpc.unary_unary_rpc_method_handler, serve_one),
        (False, True): (grpc.unary_stream_rpc_method_handler, serve_stream),
        (True, False): (grpc.stream_unary_rpc_method_handler, serve_one),
        (True, True): (grpc.stream_stream_rpc_method_handler, serve_stream),
    }
    make_handler, serve = make[handler.request_streaming, handler.response_streaming]
    wrapped: Handler = make_handler(serve)
    return wrapped


def _release_frames(error: BaseException | None) -> None:
    """gRPC's own error keeps this one alive until a full collection, which a service with many objects rarely
    has; and with its frames a request of many megabytes."""
    while error is not None:
        error.__traceback__ = None
        error = error.__context__


def _draining() -> ServiceError:
    return ServiceError(Reason.DRAINING, "the service is shutting down; call another replica or try again")


def _bug() -> ServiceError:
    return ServiceError(Reason.BUG, f"internal error; the logs have it under request id {request_id()}")


def _code_of(context: ServicerContext) -> Any:
    """The status code that a handler aborted with."""
    code: Any = context.code()
    return CODE_BY_NUMBER[code] if isinstance(code, int) else code or grpc.StatusCode.UNKNOWN

"""What happens around every call that a service serves: context, counting, errors, drain.

One interceptor does all of it, in one order, so that a refused call is counted and a failed one is logged
with its request id.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, aclosing, asynccontextmanager
from time import perf_counter
from typing import Any, TypeAlias

import grpc
import structlog
from google.protobuf.message import DecodeError
from grpc_status import rpc_status

from shared import metrics
from shared.errors import Reason, ServiceError, to_status
from shared.log import get_logger
from shared.request_context import enter_call, request_id
from shared.wire import MAX_MESSAGE_BYTES

ServicerContext: TypeAlias = grpc.aio.ServicerContext[Any, Any]

_STANDARD_SERVICES = ("/grpc.health.", "/grpc.reflection.")

_log = get_logger()


class DrainState:
    """Whether new calls are refused, and which calls still run. Set by the server, read by the wrapper."""

    def __init__(self) -> None:
        self.draining = False
        self.expired = False
        self.calls: set[asyncio.Task[Any]] = set()

    def begin(self) -> None:
        """From now on new calls are refused."""
        self.draining = True

    def check(self) -> None:
        """Refuses a new call while draining."""
        if self.draining:
            raise _draining()

    async def wait_until_idle(self, seconds: float) -> bool:
        """True once no call runs; False if some still do after that time."""
        deadline = perf_counter() + seconds
        while self.calls and perf_counter() < deadline:
            await asyncio.wait(self.calls, timeout=max(0.0, deadline - perf_counter()))
        return not self.calls

    async def end_calls(self) -> None:
        """Ends what still runs with UNAVAILABLE (DRAINING)."""
        self.expired = True
        calls = list(self.calls)
        for task in calls:
            task.cancel()
        if calls:
            await asyncio.wait(calls, timeout=1.0)


class ServerInterceptor(grpc.aio.ServerInterceptor):
    """Wraps every handler but those of the standard services (health, reflection)."""

    def __init__(self, drain: DrainState) -> None:
        self._drain = drain

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[Any]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> Any:
        """Replaces the handler by one that does the same inside `_call`."""
        handler = await continuation(handler_call_details)
        method = handler_call_details.method
        if handler is None or method.startswith(_STANDARD_SERVICES):
            return handler
        metadata = handler_call_details.invocation_metadata
        decode, encode = _decoder(handler, method), _encoder(handler, method)

        # gRPC hands over bytes and takes bytes: what cannot be decoded, or is too large to send, is an error
        # of the call like any other.
        async def serve_stream(request: Any, context: ServicerContext) -> AsyncIterator[bytes]:
            behavior = handler.stream_stream or handler.unary_stream
            async with self._call(method, metadata, context):
                message = _decoded(request, decode) if handler.request_streaming else decode(request)
                async with aclosing(behavior(message, context)) as events:
                    async for event in events:
                        yield encode(event)

        async def serve_one(request: Any, context: ServicerContext) -> bytes:
            behavior = handler.stream_unary or handler.unary_unary
            async with self._call(method, metadata, context):
                message = _decoded(request, decode) if handler.request_streaming else decode(request)
                return encode(await behavior(message, context))

        if handler.response_streaming:
            make: Any = (
                grpc.stream_stream_rpc_method_handler
                if handler.request_streaming
                else grpc.unary_stream_rpc_method_handler
            )
            return make(serve_stream)
        make = (
            grpc.stream_unary_rpc_method_handler
            if handler.request_streaming
            else grpc.unary_unary_rpc_method_handler
        )
        return make(serve_one)

    @asynccontextmanager
    async def _call(self, method: str, metadata: Any, context: ServicerContext) -> AsyncIterator[None]:
        """Around one call: its context, its place in the drain, its count, its errors."""
        structlog.contextvars.clear_contextvars()
        enter_call(metadata or ())
        start = perf_counter()
        code = grpc.StatusCode.OK
        task = asyncio.current_task()
        async with AsyncExitStack() as stack:
            if task is not None:
                self._drain.calls.add(task)
                stack.callback(self._drain.calls.discard, task)
            in_flight = metrics.SERVER_IN_FLIGHT.labels(method)
            in_flight.inc()
            stack.callback(in_flight.dec)
            try:
                self._drain.check()
                yield
            except ServiceError as error:
                code = error.code
                await context.abort_with_status(rpc_status.to_status(to_status(error)))
            except grpc.aio.AbortError:
                code = grpc.StatusCode(_code_of(context))
                raise
            except asyncio.CancelledError:
                code = grpc.StatusCode.CANCELLED
                if not self._drain.expired:
                    raise
                code = grpc.StatusCode.UNAVAILABLE
                await context.abort_with_status(rpc_status.to_status(to_status(_draining())))
            except GeneratorExit:
                code = grpc.StatusCode.CANCELLED
                raise
            except Exception as error:  # noqa: BLE001 a bug of ours must not reach the caller as it is
                code = grpc.StatusCode.INTERNAL
                _log.exception("bug", method=method, error=type(error).__name__)
                await context.abort_with_status(rpc_status.to_status(to_status(_bug())))
            finally:
                metrics.SERVER_LATENCY.labels(method).observe(perf_counter() - start)
                metrics.SERVER_REQUESTS.labels(method, code.name).inc()
                _log.debug("served", method=method, code=code.name, seconds=round(perf_counter() - start, 6))


def _draining() -> ServiceError:
    return ServiceError(Reason.DRAINING, "the service is shutting down; call another replica or try again")


def _bug() -> ServiceError:
    return ServiceError(Reason.BUG, f"internal error; the logs have it under request id {request_id()}")


def _code_of(context: ServicerContext) -> Any:
    """The status that a handler aborted with."""
    code: Any = context.code()
    by_number = {each.value[0]: each for each in grpc.StatusCode}
    return by_number[code] if isinstance(code, int) else code or grpc.StatusCode.UNKNOWN


async def _decoded(requests: AsyncIterator[bytes], decode: Callable[[bytes], Any]) -> AsyncIterator[Any]:
    async for data in requests:
        yield decode(data)


def _decoder(handler: Any, method: str) -> Callable[[bytes], Any]:
    received = metrics.SERVER_RECEIVED.labels(method)

    def decode(data: bytes) -> Any:
        received.inc(len(data))
        try:
            return handler.request_deserializer(data)
        except DecodeError:
            message = "the request's bytes are no message of this method's type"
            raise ServiceError(Reason.MALFORMED_MESSAGE, message) from None

    return decode


def _encoder(handler: Any, method: str) -> Callable[[Any], bytes]:
    sent = metrics.SERVER_SENT.labels(method)

    def encode(message: Any) -> bytes:
        data: bytes = handler.response_serializer(message)
        if len(data) > MAX_MESSAGE_BYTES:
            text = f"the response has {len(data)} bytes; allowed: {MAX_MESSAGE_BYTES}; ask for less"
            raise ServiceError(Reason.MESSAGE_TOO_LARGE, text)
        sent.inc(len(data))
        return data

    return encode

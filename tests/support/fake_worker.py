"""A WorkerService without a model, for tests of the scheduler: sessions and fencing as the contract says, a
deterministic FakeModel behind them, and switches for everything that can go wrong.

In this process: `async with FakeWorker() as worker`. As a process of its own:
`python -m tests.support.fake_worker --listen HOST:PORT`.
"""

import argparse
import asyncio
import contextlib
import uuid
from collections.abc import AsyncIterator, Callable
from time import perf_counter
from typing import Any

import grpc
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from triptych.v1 import worker_pb2, worker_pb2_grpc

from shared.errors import Reason, ServiceError
from shared.interceptors import DrainState, ServerInterceptor
from shared.wire import SERVER_OPTIONS, Address
from tests.support.fake_worker_model import ContractViolationError, FakeModel, make_info

WORKER_SERVICE = "triptych.v1.WorkerService"


class _Session:
    def __init__(self, generation: int) -> None:
        self.generation = generation
        self.last_step_id = 0
        self.is_fenced = asyncio.Event()


class FakeWorker(worker_pb2_grpc.WorkerServiceServicer):
    """Counts what it was asked; `violations` says what no scheduler may do, and stays empty."""

    def __init__(self, step_seconds: float = 0.0, port: int = 0, **model_info: object) -> None:
        """port: a free one by default, kept over restarts. model_info: what differs from make_info's."""
        self.info = make_info(**model_info)
        self.address = Address("127.0.0.1", port)
        self.opens: list[worker_pb2.OpenSession] = []
        self.steps: list[worker_pb2.Step] = []
        self.violations: list[str] = []
        # Switches.
        self.step_seconds = step_seconds
        self.refuses_as_fenced = False
        self.failing_request_ids: set[str] = set()
        # Changes a step's result before it is sent.
        self.mangle: Callable[[worker_pb2.StepResult], None] | None = None
        # Raised instead of answering a step.
        self.step_error: ServiceError | None = None
        self._may_answer = asyncio.Event()
        self._may_answer.set()
        self._in_flight = asyncio.Event()
        self._server: grpc.aio.Server | None = None

    async def __aenter__(self) -> "FakeWorker":
        await self.start()
        return self

    async def __aexit__(self, *_exc: object) -> None:
        await self.stop()

    # From start to stop is one life, as of a process: nothing but the port and what was recorded outlives it.

    async def start(self) -> None:
        """Comes up, empty, with a new worker_epoch, SERVING."""
        self._worker_epoch = uuid.uuid4().hex
        self._model = FakeModel(self.info)
        self._current: _Session | None = None
        self._highest_generation = 0
        self._health = health.aio.HealthServicer()
        self._server = grpc.aio.server(interceptors=[ServerInterceptor(DrainState())], options=SERVER_OPTIONS)
        worker_pb2_grpc.add_WorkerServiceServicer_to_server(self, self._server)
        health_pb2_grpc.add_HealthServicer_to_server(self._health, self._server)
        await self.set_serving(True)
        self.address = self.address.with_port(self._server.add_insecure_port(str(self.address)))
        await self._server.start()

    async def stop(self) -> None:
        """Goes away at once; connections break."""
        if self._server is not None:
            await self._server.stop(None)
            self._server = None
        self.release()

    async def restart(self) -> None:
        """Dies and comes back, having forgotten everything."""
        await self.stop()
        await self.start()

    # Switches that are more than a value.

    def hold(self) -> None:
        """From now on steps are computed, but not answered: the step hangs."""
        self._in_flight.clear()
        self._may_answer.clear()

    def release(self) -> None:
        """Answers the step that hangs, and all further ones."""
        self._may_answer.set()

    async def step_in_flight(self) -> worker_pb2.Step:
        """Returns when a step hangs; the worker is held."""
        await asyncio.wait_for(self._in_flight.wait(), 5)
        return self.steps[-1]

    async def set_serving(self, is_serving: bool) -> None:
        """Readiness: False drains it."""
        status = health_pb2.HealthCheckResponse.ServingStatus.Value(
            "SERVING" if is_serving else "NOT_SERVING"
        )
        await self._health.set(WORKER_SERVICE, status)

    # The service.

    async def GetModelInfo(self, request: Any, context: Any) -> worker_pb2.GetModelInfoResponse:
        """The model."""
        return worker_pb2.GetModelInfoResponse(model_info=self.info)

    async def Execute(
        self, request_iterator: AsyncIterator[worker_pb2.ExecuteRequest], context: Any
    ) -> AsyncIterator[worker_pb2.ExecuteResponse]:
        """One session."""
        requests = aiter(request_iterator)
        session = self._open((await anext(requests)).open)
        opened = worker_pb2.SessionOpened(
            worker_epoch=self._worker_epoch, session_id=uuid.uuid4().hex, model_info=self.info
        )
        yield worker_pb2.ExecuteResponse(opened=opened)
        while (message := await self._next(session, requests)) is not None:
            yield worker_pb2.ExecuteResponse(result=await self._execute(session, message.step))

    def _open(self, message: worker_pb2.OpenSession) -> _Session:
        self.opens.append(message)
        if self.refuses_as_fenced or message.generation < self._highest_generation:
            raise ServiceError(Reason.FENCED, "a later scheduler had this worker")
        if self._current is not None:
            self._current.is_fenced.set()
        self._highest_generation = message.generation
        self._current = _Session(message.generation)
        return self._current

    async def _next(
        self, session: _Session, requests: AsyncIterator[worker_pb2.ExecuteRequest]
    ) -> worker_pb2.ExecuteRequest | None:
        message = asyncio.ensure_future(anext(requests, None))
        fenced = asyncio.ensure_future(session.is_fenced.wait())
        try:
            await asyncio.wait((message, fenced), return_when=asyncio.FIRST_COMPLETED)
            self._check_fenced(session)
            return message.result()
        finally:
            message.cancel()
            fenced.cancel()

    async def _execute(self, session: _Session, step: worker_pb2.Step) -> worker_pb2.StepResult:
        start = perf_counter()
        self.steps.append(step)
        if self.step_error is not None:
            raise self.step_error
        try:
            sequences = self._model.execute(step, expected_step_id=session.last_step_id + 1)
        except ContractViolationError as error:
            self.violations.append(str(error))
            raise ServiceError(Reason.MALFORMED_STEP, str(error)) from None
        session.last_step_id = step.step_id
        if self.step_seconds:
            await asyncio.sleep(self.step_seconds)
        self._in_flight.set()
        await self._may_answer.wait()
        self._check_fenced(session)
        result = worker_pb2.StepResult(step_id=step.step_id, sequences=sequences)
        self._fail_some(step, result)
        result.timings.forward_seconds = perf_counter() - start
        if self.mangle is not None:
            self.mangle(result)
        return result

    def _fail_some(self, step: worker_pb2.Step, result: worker_pb2.StepResult) -> None:
        for sequence, outcome in zip(step.sequences, result.sequences, strict=True):
            if sequence.request_id in self.failing_request_ids:
                for sample in outcome.samples:
                    sample.error.reason = worker_pb2.SAMPLE_ERROR_REASON_LOGITS_NOT_FINITE
                    sample.error.message = "NaN among the logits"

    @staticmethod
    def _check_fenced(session: _Session) -> None:
        if session.is_fenced.is_set():
            raise ServiceError(Reason.FENCED, "a later scheduler took over", code=grpc.StatusCode.ABORTED)


async def _serve(address: Address, step_seconds: float, model_info: dict[str, object]) -> None:
    async with FakeWorker(step_seconds, address.port, **model_info):
        await asyncio.Event().wait()


def main() -> None:
    """Serves until it is killed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--listen", type=Address.parse, required=True)
    parser.add_argument("--step-seconds", type=float, default=0.0)
    parser.add_argument("--num-blocks", type=int, default=257)
    parser.add_argument("--max-model-len", type=int, default=512)
    flags = parser.parse_args()
    model_info: dict[str, object] = {"num_blocks": flags.num_blocks, "max_model_len": flags.max_model_len}
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(_serve(flags.listen, flags.step_seconds, model_info))


if __name__ == "__main__":
    main()

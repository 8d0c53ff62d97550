"""A session of a worker process, as an executor of steps."""

import queue
from collections.abc import Iterator
from types import TracebackType

import grpc
from triptych.v1 import worker_pb2, worker_pb2_grpc

from shared.wire import CLIENT_OPTIONS, Address


class GrpcWorker:
    """Opens a session when entered, and closes it in the end."""

    def __init__(self, address: Address, generation: int = 1) -> None:
        self._channel = grpc.insecure_channel(str(address), options=CLIENT_OPTIONS)
        self._stub = worker_pb2_grpc.WorkerServiceStub(self._channel)
        self._open = worker_pb2.OpenSession(scheduler_id="test", generation=generation)
        self._num_steps = 0
        self._requests: queue.SimpleQueue[worker_pb2.ExecuteRequest | None] = queue.SimpleQueue()

    def __enter__(self) -> "GrpcWorker":
        self._call = self._stub.Execute(iter(self._requests.get, None), wait_for_ready=True, timeout=120)
        self._responses: Iterator[worker_pb2.ExecuteResponse] = iter(self._call)
        self._requests.put(worker_pb2.ExecuteRequest(open=self._open))
        self.opened = next(self._responses).opened
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._requests.put(None)
        if error is None:
            assert next(self._responses, None) is None
        self._channel.close()

    def execute(self, step: worker_pb2.Step) -> worker_pb2.StepResult:
        """One step, over the wire, with the session's own number."""
        self._num_steps += 1
        numbered = worker_pb2.Step(step_id=self._num_steps, sequences=step.sequences)
        self._requests.put(worker_pb2.ExecuteRequest(step=numbered))
        result = next(self._responses).result
        assert result.step_id == self._num_steps
        return result

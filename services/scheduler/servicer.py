"""SchedulerService: tokens in, tokens out."""

from collections.abc import AsyncIterator
from typing import Any

from triptych.v1 import scheduler_pb2, scheduler_pb2_grpc

from services.scheduler.active_request import ActiveRequest
from services.scheduler.admission import check_and_resolve
from services.scheduler.engine import Engine
from services.scheduler.outcome import report_end, report_rejection
from services.scheduler.output_stream import OutputStream
from shared.errors import ServiceError
from shared.interceptors import DrainState
from shared.request_context import set_request_id


class SchedulerServicer(scheduler_pb2_grpc.SchedulerServiceServicer):
    def __init__(self, engine: Engine, drain: DrainState, output_buffer_bytes: int) -> None:
        self._engine = engine
        self._drain = drain
        self._output_buffer_bytes = output_buffer_bytes

    async def Generate(
        self, request: scheduler_pb2.GenerateRequest, context: Any
    ) -> AsyncIterator[scheduler_pb2.GenerateResponse]:
        """However the call ends, the engine then has nothing left of the request."""
        set_request_id(request.request_id)
        active = self._admit(request)
        error: BaseException | None = None
        try:
            async for event in active.stream:
                yield event
        except BaseException as raised:
            error = raised
            raise
        finally:
            report_end(
                active, error, drain_expired=self._drain.expired, seconds_left=context.time_remaining()
            )
            self._engine.abort(active.request.generation_id)

    async def GetModelInfo(
        self, request: scheduler_pb2.SchedulerServiceGetModelInfoRequest, context: Any
    ) -> scheduler_pb2.SchedulerServiceGetModelInfoResponse:
        return scheduler_pb2.SchedulerServiceGetModelInfoResponse(model_info=self._engine.pool.model_info())

    async def AbortRequest(
        self, request: scheduler_pb2.AbortRequestRequest, context: Any
    ) -> scheduler_pb2.AbortRequestResponse:
        output_index = request.output_index if request.HasField("output_index") else None
        num_aborted = self._engine.abort(request.generation_id, output_index)
        return scheduler_pb2.AbortRequestResponse(num_aborted=num_aborted)

    async def GetStatus(
        self, request: scheduler_pb2.GetStatusRequest, context: Any
    ) -> scheduler_pb2.GetStatusResponse:
        status = self._engine.status()
        status.draining = self._drain.draining
        return status

    def _admit(self, message: scheduler_pb2.GenerateRequest) -> ActiveRequest:
        """Nothing is awaited between the checks and the submission, so the checks are still valid."""
        try:
            self._engine.check_ready()
            request, sampling = check_and_resolve(message, self._engine.pool.model_info())
            self._engine.check_room()
        except ServiceError as error:
            report_rejection(error)
            raise
        active = ActiveRequest(request, sampling, OutputStream(self._output_buffer_bytes))
        self._engine.submit(active)
        return active

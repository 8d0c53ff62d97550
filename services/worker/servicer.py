"""WorkerService: sessions and steps over gRPC. The model runs on a thread of its own, so that the event loop
answers health checks in the middle of a long pass."""

import asyncio
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from time import perf_counter
from typing import Any

from triptych.v1 import types_pb2, worker_pb2, worker_pb2_grpc

from services.worker import metrics
from services.worker.session.record import Execute, SessionRecord
from services.worker.session.session_manager import Session, SessionManager
from services.worker.step.model_runner import ModelRunner
from shared.errors import Reason, ServiceError
from shared.log import get_logger

_log = get_logger()


class WorkerServicer(worker_pb2_grpc.WorkerServiceServicer):
    """Refuses calls with MODEL_LOADING until `model_loaded` is called."""

    def __init__(
        self,
        served_model_name: str,
        model_thread: ThreadPoolExecutor,
        allowed_peers: frozenset[str] | None,
        record: SessionRecord | None,
    ) -> None:
        """`model_thread` has one thread, which owns the model. `allowed_peers`: None allows all."""
        self._served_model_name = served_model_name
        self._model_thread = model_thread
        self._allowed_peers = allowed_peers
        self._sessions = SessionManager()
        self._record = record
        self._runner: ModelRunner | None = None
        self._execute_step: Execute | None = None
        self.pass_started: float | None = None
        self.is_draining = asyncio.Event()

    def model_loaded(self, runner: ModelRunner) -> None:
        self._runner = runner
        self._execute_step = runner.execute
        if self._record is not None:
            self._execute_step = self._record.around(runner.execute, runner.model_info().max_logprobs)

    async def GetModelInfo(self, request: Any, context: Any) -> worker_pb2.GetModelInfoResponse:
        return worker_pb2.GetModelInfoResponse(model_info=self._model_info())

    async def Execute(
        self, request_iterator: AsyncIterator[worker_pb2.ExecuteRequest], context: Any
    ) -> AsyncIterator[worker_pb2.ExecuteResponse]:
        self._check_peer(context)
        model_info = self._model_info()
        session, opened = await self._open(request_iterator, model_info)
        _log.info("session_opened", scheduler=session.scheduler_id, generation=session.generation)
        try:
            yield worker_pb2.ExecuteResponse(opened=opened)
            while (message := await self._next_message(session, request_iterator)) is not None:
                if message.WhichOneof("message") != "step":
                    raise ServiceError(Reason.MALFORMED_SESSION, "after `open` every message is a `step`")
                yield worker_pb2.ExecuteResponse(result=await self._execute(session, message.step))
        finally:
            _log.info("session_ended", scheduler=session.scheduler_id, generation=session.generation)

    async def _open(
        self, request_iterator: AsyncIterator[worker_pb2.ExecuteRequest], model_info: types_pb2.ModelInfo
    ) -> tuple[Session, worker_pb2.SessionOpened]:
        message = await anext(aiter(request_iterator), None)
        if message is None or message.WhichOneof("message") != "open":
            raise ServiceError(Reason.MALFORMED_SESSION, "the first message of a session is `open`")
        session, opened = await self._sessions.open(message.open)
        opened.model_info.CopyFrom(model_info)
        if self._record is not None:
            self._record.opened(message.open, opened)
        return session, opened

    async def _next_message(
        self, session: Session, request_iterator: AsyncIterator[worker_pb2.ExecuteRequest]
    ) -> worker_pb2.ExecuteRequest | None:
        """None when the scheduler closed its side. Raises when fenced, or when idle while draining."""
        message = asyncio.ensure_future(anext(aiter(request_iterator), None))
        fenced = asyncio.ensure_future(session.is_fenced.wait())
        draining = asyncio.ensure_future(self.is_draining.wait())
        try:
            await asyncio.wait((message, fenced, draining), return_when=asyncio.FIRST_COMPLETED)
            session.check_fenced()
            if not message.done():
                # The scheduler sees NOT_SERVING and starts no requests; those that run may send more steps.
                await asyncio.wait((message, fenced), return_when=asyncio.FIRST_COMPLETED, timeout=1.0)
                session.check_fenced()
            if not message.done():
                raise ServiceError(Reason.DRAINING, "the worker is shutting down")
            return message.result()
        finally:
            for task in (message, fenced, draining):
                task.cancel()

    async def _execute(self, session: Session, step: worker_pb2.Step) -> worker_pb2.StepResult:
        """One pass. Shielded: if its caller goes away it still completes, before another one starts."""
        arrived = perf_counter()
        session.check_step_id(step.step_id)
        return await asyncio.shield(asyncio.ensure_future(self._pass(session, step, arrived)))

    async def _pass(self, session: Session, step: worker_pb2.Step, arrived: float) -> worker_pb2.StepResult:
        assert self._execute_step is not None
        async with self._sessions.pass_lock:
            session.check_fenced()
            self.pass_started = perf_counter()
            try:
                loop = asyncio.get_running_loop()
                result = await loop.run_in_executor(self._model_thread, self._execute_step, step)
            finally:
                started, self.pass_started = self.pass_started, None
            session.last_executed_step_id = step.step_id
        result.timings.queue_seconds = started - arrived
        for stage in ("queue", "prepare", "forward", "sample"):
            seconds = getattr(result.timings, f"{stage}_seconds")
            metrics.WORKER_STAGE.labels(stage).observe(seconds)
        return result

    def _model_info(self) -> types_pb2.ModelInfo:
        if self._runner is None:
            raise ServiceError(Reason.MODEL_LOADING, "the model is being loaded")
        info = self._runner.model_info()
        info.model = self._served_model_name
        return info

    def _check_peer(self, context: Any) -> None:
        """With mutual TLS only named peers may open a session."""
        if self._allowed_peers is None:
            return
        identities = context.auth_context()
        keys = ("x509_common_name", "x509_subject_alternative_name")
        names = {name.decode() for key in keys for name in identities.get(key, ())}
        if not names & self._allowed_peers:
            raise ServiceError(
                Reason.PEER_NOT_ALLOWED,
                f"the certificate's names {sorted(names)} are not in --tls-allowed-peers",
            )

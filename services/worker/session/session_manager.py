"""Who may write the cache: one session at a time, the one with the highest generation."""

import asyncio
import uuid

import grpc
from triptych.v1 import worker_pb2

from shared.errors import Reason, ServiceError


class Session:
    """One scheduler's time with the cache."""

    def __init__(self, message: worker_pb2.OpenSession) -> None:
        self.session_id = uuid.uuid4().hex
        self.scheduler_id = message.scheduler_id
        self.generation = message.generation
        self.last_executed_step_id: int | None = None
        self.is_fenced = asyncio.Event()

    def check_step_id(self, step_id: int) -> None:
        """Steps count up by one, so that a lost or doubled one is noticed."""
        last = self.last_executed_step_id
        if last is not None and step_id != last + 1:
            raise ServiceError(
                Reason.MALFORMED_STEP, f"step_id is {step_id}; allowed: {last + 1}", field="step_id"
            )

    def check_fenced(self) -> None:
        """Raises once a later session has taken over."""
        if self.is_fenced.is_set():
            message = "a scheduler with a higher generation opened a session; do not try again"
            raise ServiceError(Reason.FENCED, message, code=grpc.StatusCode.ABORTED)


class SessionManager:
    """Opens and fences sessions. A pass holds `pass_lock` and is never interrupted."""

    def __init__(self) -> None:
        self.pass_lock = asyncio.Lock()
        self._worker_epoch = uuid.uuid4().hex
        # The last one opened. When its stream ends the cache stays as it is, for a session that resumes it.
        self._last: Session | None = None

    async def open(self, message: worker_pb2.OpenSession) -> tuple[Session, worker_pb2.SessionOpened]:
        """Takes over the cache; returns when no pass runs. All of SessionOpened but model_info.

        Raises FENCED if a scheduler with a higher generation had the cache.
        """
        last = self._last
        if last is not None:
            if message.generation < last.generation:
                raise ServiceError(
                    Reason.FENCED,
                    f"open.generation is {message.generation}; a scheduler with generation "
                    f"{last.generation} had this worker",
                    generation=last.generation,
                )
            # Even if its stream has ended: its step that has not begun must not run in the new session.
            last.is_fenced.set()
        session = self._last = Session(message)
        opened = worker_pb2.SessionOpened(worker_epoch=self._worker_epoch, session_id=session.session_id)
        async with self.pass_lock:
            session.check_fenced()
            if last is not None and last.session_id == message.resume_session_id:
                opened.cache_retained = True
                # Read after the lock: the pass that just ended was its own.
                opened.last_executed_step_id = last.last_executed_step_id or 0
            return session, opened

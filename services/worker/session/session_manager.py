"""Who may write the cache: one session at a time, the one with the highest generation."""

import asyncio
import uuid

import grpc
from triptych.v1 import worker_pb2

from shared.errors import Reason, ServiceError


class Session:
    """One scheduler's time with the cache."""

    def __init__(self, open_message: worker_pb2.OpenSession) -> None:
        self.session_id = uuid.uuid4().hex
        self.scheduler_id = open_message.scheduler_id
        self.generation = open_message.generation
        self.cache_retained = False
        # Of the session that this one resumes; 0 if there is none, or it executed none.
        self.resumed_step_id = 0
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
    """Opens and fences sessions. A pass that runs is never interrupted: `pass_lock` is held around each."""

    def __init__(self) -> None:
        self.worker_epoch = uuid.uuid4().hex
        self.pass_lock = asyncio.Lock()
        self._current: Session | None = None
        self._last: Session | None = None
        self._highest_generation = 0

    async def open(self, message: worker_pb2.OpenSession) -> Session:
        """Takes the cache over. Raises FENCED if a later scheduler had it; returns when no pass runs."""
        if message.generation < self._highest_generation:
            raise ServiceError(
                Reason.FENCED,
                f"open.generation is {message.generation}; a scheduler with generation "
                f"{self._highest_generation} had this worker",
                generation=self._highest_generation,
            )
        self._highest_generation = message.generation
        if self._current is not None:
            self._current.is_fenced.set()
        session, last = Session(message), self._last
        self._current = self._last = session
        async with self.pass_lock:
            session.check_fenced()
            if last is not None and last.session_id == message.resume_session_id:
                # Read only now: the pass that ran until now was its.
                session.cache_retained = True
                session.resumed_step_id = last.last_executed_step_id or 0
            return session

    def close(self, session: Session) -> None:
        """The stream ended; the cache stays as it is, for a session that resumes."""
        if self._current is session:
            self._current = None

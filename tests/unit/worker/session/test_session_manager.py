"""A race that gRPC gives no control over. Everything else: tests/integration/worker/test_sessions.py."""

import asyncio

import pytest
from triptych.v1 import worker_pb2

from services.worker.session.session_manager import SessionManager
from shared.errors import Reason, ServiceError


async def test_a_step_that_has_not_begun_when_a_later_session_opens_is_not_executed() -> None:
    """Also if its own stream has ended since: its pass would write into the later session's blocks."""
    manager = SessionManager()
    older, _ = await manager.open(worker_pb2.OpenSession(generation=7))
    async with manager.pass_lock:  # a pass of the older session
        opening = asyncio.create_task(manager.open(worker_pb2.OpenSession(generation=7)))
        await asyncio.sleep(0)
    newer, _ = await opening
    with pytest.raises(ServiceError) as caught:
        older.check_fenced()
    assert caught.value.reason is Reason.FENCED
    newer.check_fenced()

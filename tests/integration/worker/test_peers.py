"""With mutual TLS only named peers open a session."""

from pathlib import Path

import grpc
import pytest
from triptych.v1 import worker_pb2

from shared.config import TlsConfig
from shared.errors import Reason
from tests.integration.worker.conftest import StartWorker, Worker
from tests.integration.worker.sessions import Session, step
from tests.support.certificates import Authority


async def worker_for_scheduler_a(start_worker: StartWorker, folder: Path, allowed: str) -> Worker:
    """Its stub shows the certificate of scheduler-a."""
    authority = Authority(folder)
    worker = await start_worker(
        TlsConfig(tls_ca=authority.path, **authority.issue("scheduler-a", host="scheduler-a.pool.example")),
        tls_ca=authority.path,
        tls_client_auth=True,
        tls_allowed_peers=allowed,
        **authority.issue("worker"),
    )
    await worker.until_ready()
    return worker


@pytest.mark.parametrize("allowed", ["scheduler-a", " other , scheduler-a", "scheduler-a.pool.example"])
async def test_a_named_peer_opens_a_session(start_worker: StartWorker, tmp_path: Path, allowed: str) -> None:
    """Named by its common name, or by one that the certificate is for."""
    worker = await worker_for_scheduler_a(start_worker, tmp_path, allowed)
    session = Session(worker.stub)
    await session.open()
    assert (await session.execute(step(1))).step_id == 1


@pytest.mark.parametrize("allowed", ["scheduler-b", "scheduler", "scheduler-a.pool", ""])
async def test_another_peer_is_refused_a_session_but_may_ask_for_the_model(
    start_worker: StartWorker, tmp_path: Path, allowed: str
) -> None:
    worker = await worker_for_scheduler_a(start_worker, tmp_path, allowed)
    session = Session(worker.stub)
    assert await session.end() == (grpc.StatusCode.PERMISSION_DENIED, Reason.PEER_NOT_ALLOWED)
    assert "scheduler-a" in await session.call.details()
    await worker.stub.GetModelInfo(worker_pb2.GetModelInfoRequest())

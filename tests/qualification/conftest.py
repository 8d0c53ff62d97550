"""Checkpoints and models, made once per session; the same as for the worker's unit tests."""

import itertools
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from shared.wire import Address
from tests.support.checkpoint_variants import VARIANTS
from tests.support.processes import READINESS, free_port
from tests.unit.worker.conftest import (  # noqa: F401 fixtures
    _one_thread,
    checkpoint_folder,
    load_model,
    transformers_model,
)


@pytest.fixture(scope="session")
def worker_addresses(checkpoint_folder: Callable[[str], Path]) -> Iterator[dict[str, list[Address]]]:  # noqa: F811
    """Two workers for every checkpoint, in a process that is not this one."""
    addresses = {name: [Address("127.0.0.1", free_port()) for _ in range(2)] for name in VARIANTS}
    arguments = [f"{checkpoint_folder(name)}={each.port}" for name in VARIANTS for each in addresses[name]]
    process = subprocess.Popen([sys.executable, "-m", "tests.qualification.all_workers", *arguments])
    try:
        for each in itertools.chain(*addresses.values()):
            _wait_until_ready(each)
        yield addresses
    finally:
        process.kill()
        process.wait()


def _wait_until_ready(address: Address) -> None:
    """A worker listens before its model is loaded."""
    request = health_pb2.HealthCheckRequest(service=READINESS["worker"])
    with grpc.insecure_channel(str(address)) as channel:
        stub = health_pb2_grpc.HealthStub(channel)
        while (
            stub.Check(request, wait_for_ready=True, timeout=60).status
            != health_pb2.HealthCheckResponse.SERVING
        ):
            time.sleep(0.05)

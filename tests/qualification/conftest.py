"""Checkpoints and models, made once per session; the same as for the worker's unit tests."""

import itertools
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from shared.wire import Address
from tests.support.checkpoint_variants import VARIANTS
from tests.support.processes import READINESS, TriptychProcess, free_port
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
    process = TriptychProcess(*arguments, module="tests.qualification.all_workers")
    try:
        for each in itertools.chain(*addresses.values()):
            process.wait_until_serving(each, READINESS["worker"])
        yield addresses
    finally:
        process.close()

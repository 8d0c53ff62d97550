"""Checkpoints and models, made once per session."""

from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

import pytest
import torch

from services.worker.backends.reference.backend import ReferenceBackend
from services.worker.checkpoint.loader import LoadedModel, load_checkpoint
from tests.support.checkpoint_variants import VARIANTS
from tests.support.checkpoints import load_with_transformers, write_checkpoint

CPU = torch.device("cpu")


@pytest.fixture(scope="session", autouse=True)
def _one_thread() -> Iterator[None]:
    """The models are tiny: a second thread only waits for the first."""
    num_threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(num_threads)


@pytest.fixture(scope="session")
def checkpoint_folder(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """The folder of a variant of checkpoint_variants.py. Read only: tests that change it copy it."""
    return cache(lambda name: write_checkpoint(VARIANTS[name], tmp_path_factory.mktemp(name)))


@pytest.fixture(scope="session")
def load_model(checkpoint_folder: Callable[[str], Path]) -> Callable[[str], LoadedModel]:
    """A variant in our worker, in fp32."""
    return cache(
        lambda name: load_checkpoint(
            checkpoint_folder(name), dtype=torch.float32, device=CPU, backend=ReferenceBackend()
        )
    )


@pytest.fixture(scope="session")
def transformers_model(checkpoint_folder: Callable[[str], Path]) -> Callable[[str], torch.nn.Module]:
    """The same variant in transformers, in fp32."""
    return cache(lambda name: load_with_transformers(checkpoint_folder(name)))

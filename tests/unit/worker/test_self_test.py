"""The self-test accepts the reference and refuses attention that is broken as it was on MPS."""

import pytest
import torch

from services.worker import self_test
from services.worker.backends.reference.backend import ReferenceBackend
from services.worker.self_test import SelfTestError, check_device
from tests.unit.worker.backends.broken_backends import BROKEN, BrokenBackend

CPU = torch.device("cpu")


@pytest.fixture
def _distrust_the_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that this machine's CPU is tested as another device is."""
    monkeypatch.setattr(self_test, "TRUSTED_DEVICE", "the cpu of another machine")
    monkeypatch.setattr(self_test, "REFERENCE_DEVICE", CPU)


@pytest.mark.usefixtures("_distrust_the_cpu")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_what_agrees_is_accepted(dtype: torch.dtype) -> None:
    check_device(CPU, dtype, ReferenceBackend())


@pytest.mark.usefixtures("_distrust_the_cpu")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", BROKEN)
def test_broken_attention_is_refused_in_one_sentence(name: str, dtype: torch.dtype) -> None:
    with pytest.raises(SelfTestError) as caught:
        check_device(CPU, dtype, BrokenBackend(BROKEN[name]))
    message = str(caught.value)
    assert message.startswith(
        "cpu cannot run the model" if name == "another width" else "cpu computes something"
    )
    assert "\n" not in message


def test_the_cpu_itself_is_what_others_are_measured_by() -> None:
    check_device(CPU, torch.float32, BrokenBackend(BROKEN["NaN"]))

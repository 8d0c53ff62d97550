"""Every operator that the pass dispatches runs on Apple's MPS: there is no such device here to try it on."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path

import pytest
import torch
import torchgen
from torch.utils._python_dispatch import TorchDispatchMode
from torchgen.gen import parse_native_yaml
from torchgen.model import DispatchKey, NativeFunction

from services.worker.backends.reference import mla
from services.worker.backends.reference.mla import is_mha_cheaper
from services.worker.checkpoint.loader import LoadedModel
from tests.support.checkpoint_variants import VARIANTS
from tests.unit.worker.step.steps import Generation, make_runner, run_generations

# What a kernel may be registered for, and then runs on MPS.
KEYS = (
    DispatchKey.MPS,
    DispatchKey.CompositeImplicitAutograd,
    DispatchKey.CompositeExplicitAutograd,
    DispatchKey.CompositeExplicitAutogradNonFunctional,
)


class Recorder(TorchDispatchMode):
    """The names of all operators that run, and the types of what they give."""

    def __init__(self) -> None:
        super().__init__()
        self.operators: set[str] = set()
        self.dtypes: set[torch.dtype] = set()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        self.operators.add(str(func).removeprefix("aten."))
        results = result if isinstance(result, tuple | list) else (result,)
        self.dtypes |= {each.dtype for each in results if isinstance(each, torch.Tensor)}
        return result


@cache
def has_mps_kernel() -> dict[str, bool]:
    """Each operator of torch by name ("add.Tensor", "bmm.default"): whether it has a kernel for MPS."""
    folder = Path(torchgen.__file__).parent / "packaged" / "ATen" / "native"
    parsed = parse_native_yaml(str(folder / "native_functions.yaml"), str(folder / "tags.yaml"))
    by_name = {str(function.func.name): function for function in parsed.native_functions}

    def has_kernel(function: NativeFunction) -> bool:
        # A structured operator's kernel is that of its out variant.
        delegate = function.structured_delegate
        return any(parsed.backend_indices[key].has_kernel(function) for key in KEYS) or (
            delegate is not None and has_kernel(by_name[str(delegate)])
        )

    def qualified(name: str) -> str:
        return name if "." in name else f"{name}.default"

    return {qualified(name): has_kernel(function) for name, function in by_name.items()}


def test_the_list_knows_what_mps_has_and_what_it_lacks() -> None:
    has_kernel = has_mps_kernel()
    assert has_kernel["bmm.default"]
    assert has_kernel["add.Tensor"]
    assert not has_kernel["linalg_eig.default"]


@contextmanager
def recording_device_work(runner: object, monkeypatch: pytest.MonkeyPatch) -> Iterator[Recorder]:
    """Records the model's own work; choosing tokens runs on the CPU, whatever the device."""
    recorder = Recorder()
    model = runner._model  # type: ignore[attr-defined]
    for name in ("forward", "logits"):
        original = getattr(model, name)

        def recorded(*arguments: object, original: Callable[..., object] = original) -> object:
            with recorder:
                return original(*arguments)

        monkeypatch.setattr(model, name, recorded)
    yield recorder


@pytest.mark.parametrize("max_scratch", [mla.MAX_SCRATCH, 2000], ids=["one tile", "many tiles"])
@pytest.mark.parametrize("name", VARIANTS)
def test_every_operator_of_the_pass_has_a_kernel_for_mps(
    name: str, max_scratch: int, load_model: Callable[[str], LoadedModel], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mla, "MAX_SCRATCH", max_scratch)
    loaded = load_model(name)
    assert is_mha_cheaper(loaded.config, 40, 40)
    runner = make_runner(loaded)
    with recording_device_work(runner, monkeypatch) as recorder:
        run_generations(
            runner,
            [Generation(0, [3] * 40, 3, 40, list(range(1, 12))), Generation(1, [4] * 6, 3, 2, [20, 21, 22])],
        )
    lacking = {each for each in recorder.operators if not has_mps_kernel().get(each, False)}
    assert len(recorder.operators) > 20
    assert not lacking
    # A type that MPS lacks.
    assert torch.float64 not in recorder.dtypes

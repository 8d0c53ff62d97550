"""What a worker process does about its device before it serves from it."""

import torch

from tests.support.processes import ServiceProcess, started

BROKEN_DEVICE = "tests.integration.worker.broken_device_worker"


def test_a_device_whose_attention_is_broken_is_refused_in_one_line() -> None:
    worker = ServiceProcess("worker", "--dtype", "float32", module=BROKEN_DEVICE)
    try:
        assert worker.wait(60) == 2
        (line,) = [line for line in worker.stderr.splitlines() if not line.startswith("{")]
        assert line.startswith(
            "triptych: --device: cpu computes something else than the CPU: in step 1 of the "
        )
    finally:
        worker.close()


def test_what_auto_has_chosen_is_logged_with_its_reason() -> None:
    with started("worker", "--threads", "1") as worker:
        worker.wait_until_ready()
        (loaded,) = [line for line in worker.log if line["event"] == "model_loaded"]
    has_amx = torch.cpu.get_capabilities().get("amx_bf16", False)
    dtype = "torch.bfloat16" if has_amx else "torch.float32"
    assert (loaded["device"], loaded["dtype"], loaded["threads"]) == ("cpu", dtype, 1)
    assert loaded["dtype_why"]

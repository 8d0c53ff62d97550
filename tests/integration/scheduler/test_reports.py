"""What operators see: how each request ended, lengths, limits."""

from typing import Any

import pytest
import structlog
from prometheus_client import REGISTRY
from triptych.v1 import scheduler_pb2

from tests.integration.scheduler.client import collect, prompt_of, read_until, refusal_of, request, until
from tests.integration.scheduler.conftest import MakeRig, Rig
from tests.support.fake_worker import FakeWorker


def value(name: str, **labels: str) -> float:
    return REGISTRY.get_sample_value(name, labels) or 0.0


async def finish(rig: Rig) -> None:
    await rig.generate(request(prompt_of(5), max_tokens=3, n=2))


async def abort_one_output(rig: Rig) -> None:
    call = rig.stub.Generate(request(prompt_of(5), max_tokens=60, n=2))
    generation_id = (await read_until(call, "admitted")).admitted.generation_id
    await read_until(call, "chunk")
    await rig.stub.AbortRequest(
        scheduler_pb2.AbortRequestRequest(generation_id=generation_id, output_index=1)
    )
    await collect(call)


async def cancel(rig: Rig) -> None:
    call = rig.stub.Generate(request(prompt_of(5), max_tokens=400))
    await read_until(call, "chunk")
    call.cancel()


async def fail(rig: Rig) -> None:
    await refusal_of(rig.stub.Generate(request(prompt_of(5), request_id="bad")))


@pytest.mark.parametrize(
    ("end", "event", "reason", "code", "finish_reasons"),
    [
        (finish, "request_finished", None, "OK", ["LENGTH", "LENGTH"]),
        (abort_one_output, "request_finished", None, "OK", ["LENGTH", "ABORT"]),
        (cancel, "request_cancelled", None, "CANCELLED", []),
        (fail, "request_failed", "SEQUENCE_FAILED", "INTERNAL", []),
    ],
)
async def test_the_end_of_each_request_is_one_line_with_its_reason_and_code(
    make_rig: MakeRig, end: Any, event: str, reason: str | None, code: str, finish_reasons: list[str]
) -> None:
    rig = await make_rig(FakeWorker(step_seconds=0.01))
    rig.workers[0].failing_request_ids = {"bad"}
    with structlog.testing.capture_logs() as lines:
        await end(rig)
        await until(lambda: rig.is_idle)
    (line,) = [each for each in lines if each["event"].startswith("request_")]
    assert (line["event"], line["reason"], line["code"]) == (event, reason, code)
    assert line["finish_reasons"] == finish_reasons


async def test_a_rejected_request_is_logged_once_and_counted(make_rig: MakeRig) -> None:
    rig = await make_rig(FakeWorker())
    labels = {"outcome": "rejected", "reason": "PARAMETER_OUT_OF_RANGE"}
    before = value("triptych_ended_requests_total", **labels)
    with structlog.testing.capture_logs() as lines:
        await refusal_of(rig.stub.Generate(request(prompt_of(5), top_p=2)))
    assert value("triptych_ended_requests_total", **labels) == before + 1
    (line,) = [each for each in lines if each.get("reason") == "PARAMETER_OUT_OF_RANGE"]
    assert (line["event"], line["log_level"]) == ("rejected", "info")
    assert line["field"] == "sampling_params.top_p"


async def test_outputs_are_counted_by_finish_reason_and_lengths_are_histograms(make_rig: MakeRig) -> None:
    rig = await make_rig(FakeWorker())
    names = {
        "triptych_finished_outputs_total": {"finish_reason": "LENGTH"},
        "triptych_prompt_len_tokens_count": {},
        "triptych_prompt_len_tokens_sum": {},
        "triptych_output_len_tokens_count": {},
        "triptych_output_len_tokens_sum": {},
    }
    before = [value(name, **labels) for name, labels in names.items()]
    await rig.generate(request(prompt_of(40), max_tokens=7, n=2))
    after = [value(name, **labels) for name, labels in names.items()]
    assert [new - old for new, old in zip(after, before, strict=True)] == [2, 1, 40, 2, 14]


async def test_limits_are_gauges_and_those_of_a_lost_worker_are_zero(make_rig: MakeRig) -> None:
    rig = await make_rig(FakeWorker(num_blocks=11), max_num_seqs=7, max_num_batched_tokens=99, max_waiting=5)
    (worker,) = rig.workers
    address = {"worker": str(worker.address)}
    assert value("triptych_max_num_seqs") == 7
    assert value("triptych_max_waiting_requests") == 5
    of_worker = ("triptych_max_num_batched_tokens", "triptych_max_kv_blocks", "triptych_worker_ready")

    def limits() -> list[float]:
        return [*(value(name, **address) for name in of_worker), value("triptych_max_model_len_tokens")]

    assert limits() == [99, 10, 1, 160]
    await worker.set_serving(False)
    await until(lambda: limits() == [99, 10, 0, 160])
    await worker.stop()
    await until(lambda: limits() == [0, 0, 0, 0])
    blocks = [value("triptych_kv_blocks", state=state, **address) for state in ("live", "cached", "free")]
    assert blocks == [0, 0, 0]

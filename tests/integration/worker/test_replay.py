"""`--record` and `triptych replay`: what one worker executed, run again on another one."""

import io
import random
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from google.protobuf import proto
from triptych.v1 import worker_pb2

from services.cli.replay import read_sessions
from services.cli.replay_difference import first_difference
from services.worker.session.record import read_record
from shared.config import ConfigError
from tests.qualification.grpc_worker import GrpcWorker
from tests.support.processes import ServiceProcess, free_port, run, started
from tests.unit.worker.steps import Generation, run_generations

BLOCK_SIZE = 16
NUM_SESSIONS = 2
Change = Callable[[worker_pb2.StepResult], object]


def generate(worker: ServiceProcess, generation: int) -> None:
    """One session of greedy and drawn continuations, whose prompts come in chunks."""
    numbers = random.Random(1)
    generations = [
        Generation(
            key=key,
            token_ids=[numbers.randrange(300) for _ in range(prompt_len)],
            num_to_generate=6,
            chunk=16,
            block_ids=list(range(1 + 10 * key, 11 + 10 * key)),
            params={"temperature": key % 2 * 1.0, "seed": key, "logprobs": 1} if key else {},
        )
        for key, prompt_len in enumerate((40, 3, 17))
    ]
    with GrpcWorker(worker.address, generation) as session:
        run_generations(session, generations, block_size=BLOCK_SIZE)


def write(path: Path, messages: list[worker_pb2.RecordedMessage]) -> Path:
    buffer = io.BytesIO()
    for message in messages:
        proto.serialize_length_prefixed(message, buffer)
    path.write_bytes(buffer.getvalue())
    return path


@pytest.fixture(scope="module")
def record(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What a worker wrote before it was killed."""
    path = tmp_path_factory.mktemp("record") / "steps"
    with started("worker", "--num-blocks", "64", "--threads", "1", "--record", str(path)) as worker:
        worker.wait_until_ready()
        for generation in range(NUM_SESSIONS):
            generate(worker, 5 + generation)
        second = run("worker", "--listen", f"127.0.0.1:{free_port()}", "--record", str(path))
        assert second.returncode == 2
        assert (
            second.stderr.strip() == f"triptych: --record: {str(path)!r} is being written by another worker"
        )
        worker.kill()
    return path


@pytest.fixture(scope="module")
def other_worker() -> Iterator[ServiceProcess]:
    """Another worker, whose unused slots hold NaN: a difference to the record would be a read of one."""
    with started("worker", "--num-blocks", "64", "--threads", "1", "--poison-cache") as worker:
        worker.wait_until_ready()
        yield worker


def test_a_record_runs_on_another_worker_and_gives_the_same(
    record: Path, other_worker: ServiceProcess
) -> None:
    kinds = [message.WhichOneof("message") for message in read_record(record)]
    num_steps = kinds.count("step")
    assert kinds == (["open", "opened"] + ["step", "result"] * (num_steps // 2)) * NUM_SESSIONS
    for _ in range(2):
        done = run("replay", str(record), "--worker", str(other_worker.address))
        assert (done.returncode, done.stderr) == (0, "")
        assert done.stdout == f"equal: {num_steps} steps, sessions: {NUM_SESSIONS}\n"


def test_the_first_difference_is_reported_with_the_two_best(
    record: Path, other_worker: ServiceProcess, tmp_path: Path
) -> None:
    messages = list(read_record(record))
    # Sequence 0 has a prompt of 40 tokens in chunks of 16: its first token is chosen in step 3.
    result = next(m.result for m in messages if m.HasField("result") and m.result.step_id == 3)
    result.sequences[0].samples[0].token_id += 1
    changed = write(tmp_path / "changed", messages)
    done = run("replay", str(changed), "--worker", str(other_worker.address))
    assert done.returncode == 1
    token_id = result.sequences[0].samples[0].token_id
    expected = f"step 3, sequence 0, position 40: recorded token {token_id}, replayed token {token_id - 1}; "
    assert done.stdout.startswith(f"{expected}the replay's two best there: token {token_id - 1} (")


def test_a_step_that_was_not_answered_is_run_all_the_same(
    record: Path, other_worker: ServiceProcess, tmp_path: Path
) -> None:
    cut = write(tmp_path / "cut", list(read_record(record))[:-1])
    with cut.open("ab") as file:
        file.write(b"\xff\xff\x03half of an entry")
    done = run("replay", str(cut), "--worker", str(other_worker.address))
    assert done.returncode == 0
    assert "1 had no recorded result" in done.stdout


def test_a_file_that_is_no_record_is_refused_and_left_alone(record: Path, tmp_path: Path) -> None:
    text = tmp_path / "text"
    text.write_text("This is no record.\n" * 100)
    for path, expected in (
        (tmp_path / "missing", "cannot read the record: .*No such file"),
        (text, "is no record of a worker: see its byte 0"),
        (write(tmp_path / "empty", []), "holds no session"),
        (write(tmp_path / "headless", list(read_record(record))[2:]), "begins with a step"),
    ):
        with pytest.raises(ConfigError, match=expected):
            list(read_sessions(path))
    assert text.read_text().startswith("This is no record.")


def test_a_worker_that_cannot_run_the_record_is_told_in_one_line(
    record: Path, other_worker: ServiceProcess, tmp_path: Path
) -> None:
    larger, malformed = list(read_record(record)), list(read_record(record))
    larger[1].opened.model_info.num_blocks = 65
    malformed[2].step.sequences[0].block_ids[0] = 64
    there, nowhere = str(other_worker.address), f"127.0.0.1:{free_port()}"
    for path, address, expected in (
        (write(tmp_path / "larger", larger), there, "num_blocks is 64; the record needs at least 65"),
        (
            write(tmp_path / "malformed", malformed),
            there,
            "INVALID_ARGUMENT: sequences[0].block_ids[0] is 64",
        ),
        (record, nowhere, "UNAVAILABLE"),
    ):
        done = run("replay", str(path), "--worker", str(address))
        assert done.returncode == 2, done
        assert expected in done.stderr
        assert done.stderr.startswith("triptych: ")
        assert done.stderr.count("\n") == 1


def fail_sample(result: worker_pb2.StepResult) -> None:
    result.sequences[0].samples[0].error.reason = worker_pb2.SAMPLE_ERROR_REASON_LOGITS_NOT_FINITE


def shift_logprob(result: worker_pb2.StepResult) -> None:
    result.sequences[1].samples[0].logprobs.top[0].logprob -= 0.02


def shift_prompt_logprob(result: worker_pb2.StepResult) -> None:
    result.sequences[1].prompt_logprobs[1].token.logprob += 0.02


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (lambda result: None, None),
        (fail_sample, "step 3, sequence 7, position 12: recorded SAMPLE_ERROR_REASON_LOGITS_NOT_FINITE, "),
        (shift_logprob, "step 3, sequence 8 (request r), position 3: log-probabilities differ by 0.02; "),
        (shift_prompt_logprob, "step 3, sequence 8 (request r), prompt position 2: log-probabilities differ"),
    ],
    ids=["none", "an error", "a log-probability", "one of the prompt's"],
)
def test_every_kind_of_difference_is_found(change: Change, expected: str | None) -> None:
    def logprobs(*values: float) -> worker_pb2.Sample:
        entries = [{"token_id": i, "logprob": value} for i, value in enumerate(values)]
        return worker_pb2.Sample(token_id=0, logprobs={"token": entries[0], "top": entries})

    step = worker_pb2.Step(
        step_id=3,
        sequences=[
            {"sequence_key": 7, "token_ids": [1, 2], "context_len": 10, "samplings": [{"query_index": 1}]},
            {"sequence_key": 8, "request_id": "r", "token_ids": [3, 4, 5], "samplings": [{"query_index": 2}]},
        ],
    )
    replayed = worker_pb2.StepResult(
        step_id=3,
        sequences=[
            worker_pb2.SequenceResult(samples=[logprobs(-0.1, -2.0)]),
            worker_pb2.SequenceResult(
                samples=[logprobs(-0.2, -3.0)],
                prompt_logprobs=[logprobs(-0.3, -4.0).logprobs, logprobs(-0.4, -5.0).logprobs],
            ),
        ],
    )
    recorded = worker_pb2.StepResult()
    recorded.CopyFrom(replayed)
    change(recorded)
    difference = first_difference(step, recorded, replayed, tolerance=0.01)
    if expected is None:
        assert difference is None
    else:
        assert difference is not None
        assert difference.startswith(expected)
        assert "two best there: token 0 (-0." in difference

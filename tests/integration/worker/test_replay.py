"""`--record` and `triptych replay`: what one worker executed, run again on another one."""

import io
import random
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from google.protobuf import proto
from triptych.v1 import types_pb2, worker_pb2

from services.cli.replay import ReplayConfig, read_sessions, replay
from services.cli.replay_difference import first_difference
from services.worker.session.record import SessionRecord, read_record
from services.worker.step.model_runner import ModelRunner
from shared.config import ConfigError
from tests.qualification.grpc_worker import GrpcWorker
from tests.support.processes import ServiceProcess, free_port, run, started
from tests.unit.worker.step.steps import Generation, run_generations

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


def samples_of(results: list[worker_pb2.StepResult]) -> list[worker_pb2.Sample]:
    return [sample for result in results for sequence in result.sequences for sample in sequence.samples]


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
        refusal = second.stderr.splitlines()[-1]
        assert refusal == f"triptych: --record: {str(path)!r} is being written by another worker"
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
    results = [message.result for message in read_record(record) if message.HasField("result")]
    assert all(len(sample.logprobs.top) == 2 for sample in samples_of(results))
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


@pytest.fixture(scope="module")
def weak_worker() -> Iterator[ServiceProcess]:
    """Another worker, whose attention is wrong by so little that it chooses the same tokens."""
    module = "tests.integration.worker.weak_attention_worker"
    with started("worker", "--num-blocks", "64", "--threads", "1", module=module) as worker:
        worker.wait_until_ready()
        yield worker


class RecordingRunner:
    """Executes steps as a worker with --record does, in this process."""

    def __init__(self, runner: ModelRunner, record: SessionRecord) -> None:
        model_info = runner.model_info()
        record.opened(worker_pb2.OpenSession(generation=1), worker_pb2.SessionOpened(model_info=model_info))
        self._execute = record.around(runner.execute, model_info.max_logprobs)
        self._num_steps = 0

    def execute(self, step: worker_pb2.Step) -> worker_pb2.StepResult:
        self._num_steps += 1
        return self._execute(worker_pb2.Step(step_id=self._num_steps, sequences=step.sequences))


@pytest.mark.parametrize("asked", [{}, {"logprobs": 0}, {"logprobs": 3}], ids=["none", "its own", "three"])
@pytest.mark.parametrize("how", [{}, {"temperature": 1.0, "seed": 4}], ids=["greedy", "sampled"])
def test_subtly_wrong_attention_is_reported_though_all_tokens_are_equal(
    model_runner: ModelRunner,
    weak_worker: ServiceProcess,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    how: dict[str, float],
    asked: dict[str, int],
) -> None:
    record = SessionRecord(tmp_path / "record")
    generation = Generation(1, list(range(40)), 6, 16, [3, 2, 1], params={**how, **asked})
    run_generations(RecordingRunner(model_runner, record), [generation], block_size=BLOCK_SIZE)
    record.close()

    def replayed(**flags: Any) -> tuple[int, str]:
        config = ReplayConfig(worker=weak_worker.address, **flags)
        return replay(str(tmp_path / "record"), config), capsys.readouterr().out

    assert replayed(tolerance=100.0) == (0, "equal: 8 steps, sessions: 1\n")
    code, difference = replayed()
    value = r"token \d+ \(-\d\.\d{6}\)"
    values = f"recorded {value}, replayed {value}"
    assert re.match(rf"step 3, sequence 1, position 40: log-probabilities differ: {values}; ", difference)
    assert code == 1


def test_a_record_without_log_probabilities_compares_tokens_and_says_so(
    record: Path, other_worker: ServiceProcess, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    messages = list(read_record(record))
    samples = samples_of([message.result for message in messages if message.HasField("result")])
    for sample in samples:
        sample.ClearField("logprobs")
    old = write(tmp_path / "old", messages)
    config = ReplayConfig(worker=other_worker.address)
    assert replay(str(old), config) == 0
    bare = f"{len(samples)} of {len(samples)} samples have no recorded log-probabilities"
    assert capsys.readouterr().out.splitlines()[1:] == [f"{bare}: only their tokens were compared"]
    samples[-1].token_id += 1
    assert replay(str(write(tmp_path / "old", messages)), config) == 1


def test_a_step_that_was_not_answered_is_run_all_the_same(
    record: Path, other_worker: ServiceProcess, tmp_path: Path
) -> None:
    cut = write(tmp_path / "cut", list(read_record(record))[:-1])
    with cut.open("ab") as file:
        file.write(b"\xff\xff\x03half of an entry")
    done = run("replay", str(cut), "--worker", str(other_worker.address))
    assert done.returncode == 0
    assert "steps executed without a recorded result to compare: 1\n" in done.stdout


def test_a_file_that_is_no_record_is_refused_and_left_alone(record: Path, tmp_path: Path) -> None:
    text = tmp_path / "text"
    text.write_text("This is no record.\n" * 100)
    for path, expected in (
        (tmp_path / "missing", "cannot read the record: .*No such file"),
        (text, "is not a worker's record: see byte 0"),
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


def swap_best(result: worker_pb2.StepResult) -> None:
    best, rival = result.sequences[1].samples[0].logprobs.top
    best.token_id, rival.token_id = rival.token_id, best.token_id


def replace_near_tie(result: worker_pb2.StepResult) -> None:
    """The rival is another token, as likely but for the tolerance."""
    rival = result.sequences[1].samples[0].logprobs.top[1]
    rival.token_id, rival.logprob = 9, rival.logprob + 0.009


def shift_prompt_logprob(result: worker_pb2.StepResult) -> None:
    result.sequences[1].prompt_logprobs[1].token.logprob += 0.02


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (lambda result: None, None),
        (fail_sample, "step 3, sequence 7, position 12: recorded SAMPLE_ERROR_REASON_LOGITS_NOT_FINITE, "),
        (
            shift_logprob,
            "step 3, sequence 8 (request r), position 3: log-probabilities differ: "
            "recorded token 0 (-0.220000), replayed token 0 (-0.200000); ",
        ),
        (
            swap_best,
            "step 3, sequence 8 (request r), position 3: log-probabilities differ: "
            "recorded token 1 (-0.200000), replayed token 1 (-3.000000); ",
        ),
        (replace_near_tie, None),
        (shift_prompt_logprob, "step 3, sequence 8 (request r), prompt position 2: log-probabilities differ"),
    ],
    ids=["none", "an error", "a log-probability", "changed places", "a near-tie", "one of the prompt's"],
)
def test_every_kind_of_difference_is_found(change: Change, expected: str | None) -> None:
    def logprobs(*values: float) -> worker_pb2.Sample:
        entries = [types_pb2.TokenLogprob(token_id=i, logprob=value) for i, value in enumerate(values)]
        return worker_pb2.Sample(
            token_id=0, logprobs=types_pb2.PositionLogprobs(token=entries[0], top=entries)
        )

    step = worker_pb2.Step(
        step_id=3,
        sequences=[
            worker_pb2.SequenceStep(
                sequence_key=7,
                token_ids=[1, 2],
                context_len=10,
                samplings=[worker_pb2.SamplingStep(query_index=1)],
            ),
            worker_pb2.SequenceStep(
                sequence_key=8,
                request_id="r",
                token_ids=[3, 4, 5],
                samplings=[worker_pb2.SamplingStep(query_index=2)],
            ),
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

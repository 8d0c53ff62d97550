"""The file of --record: appended to across workers, whole entries only, and nobody else's file is touched."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from triptych.v1 import worker_pb2

from services.worker.checkpoint.loader import LoadedModel
from services.worker.session.record import RecordError, SessionRecord, read_record
from tests.unit.worker.step.steps import make_runner, sampling


def write_session(path: Path, step_id: int) -> None:
    record = SessionRecord(path)
    record.opened(worker_pb2.OpenSession(generation=step_id), worker_pb2.SessionOpened(session_id="s"))
    execute = record.around(lambda step: worker_pb2.StepResult(step_id=step.step_id), max_logprobs=20)
    assert execute(worker_pb2.Step(step_id=step_id)).step_id == step_id
    record.close()


def kinds(path: Path) -> list[str | None]:
    return [message.WhichOneof("message") for message in read_record(path)]


SESSION = ["open", "opened", "step", "result"]


def test_a_later_worker_appends(tmp_path: Path) -> None:
    path = tmp_path / "record"
    write_session(path, 3)
    write_session(path, 4)
    assert kinds(path) == SESSION * 2
    assert [message.step.step_id for message in read_record(path) if message.HasField("step")] == [3, 4]


def test_a_step_is_in_the_file_before_it_is_executed(tmp_path: Path) -> None:
    path = tmp_path / "record"
    record = SessionRecord(path)
    seen: list[list[str | None]] = []

    def execute(step: worker_pb2.Step) -> worker_pb2.StepResult:
        seen.append(kinds(path))
        raise RuntimeError("as if the process died")

    with pytest.raises(RuntimeError):
        record.around(execute, max_logprobs=20)(worker_pb2.Step(step_id=1))
    record.close()
    assert seen == [["step"]]


def test_an_entry_cut_anywhere_is_left_out_and_then_overwritten(tmp_path: Path) -> None:
    path = tmp_path / "record"
    write_session(path, 3)
    whole = path.read_bytes()
    last = len(worker_pb2.RecordedMessage(result=worker_pb2.StepResult(step_id=3)).SerializeToString()) + 1
    for num_bytes in range(len(whole) - last + 1, len(whole)):
        path.write_bytes(whole[:num_bytes])
        assert kinds(path) == SESSION[:3]
        write_session(path, 4)
        assert kinds(path) == SESSION[:3] + SESSION


@pytest.mark.parametrize("content", [b"hello", b"This is a text.\n" * 50, b"\x00" * 10, b"\xff" * 40])
def test_another_kind_of_file_is_refused_and_left_alone(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "file"
    path.write_bytes(content)
    with pytest.raises(RecordError, match="is not a worker's record: see byte 0"):
        SessionRecord(path)
    assert path.read_bytes() == content


def test_a_file_that_cannot_be_written_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RecordError, match=r"cannot write .*: No such file"):
        SessionRecord(tmp_path / "nowhere" / "record")


def test_one_worker_at_a_time_writes_a_record_that_only_its_owner_reads(tmp_path: Path) -> None:
    path = tmp_path / "record"
    first = SessionRecord(path)
    with pytest.raises(RecordError, match="is being written by another worker"):
        SessionRecord(path)
    first.close()
    SessionRecord(path).close()
    assert path.stat().st_mode & 0o777 == 0o600


def test_the_record_has_the_two_best_of_every_sample_and_the_caller_what_it_asked_for(
    tmp_path: Path, load_model: Callable[[str], LoadedModel]
) -> None:
    asked: list[dict[str, Any]] = [
        {},
        {"logprobs": 0},
        {"logprobs": 1},
        {"logprobs": 5},
        {"temperature": 1.0, "seed": 3},
    ]
    banned = sampling(banned_token_ids=range(load_model("v2_plain").config.vocab_size))
    step = worker_pb2.Step(
        step_id=1,
        sequences=[
            worker_pb2.SequenceStep(
                sequence_key=1,
                token_ids=[5, 6, 7],
                block_ids=[1],
                samplings=[*(sampling(query_index=2, **values) for values in asked), banned],
            ),
            worker_pb2.SequenceStep(sequence_key=2, token_ids=[8, 9, 10], block_ids=[2], prompt_logprobs=1),
            worker_pb2.SequenceStep(sequence_key=3, token_ids=[8, 9], block_ids=[3], prompt_logprobs=0),
        ],
    )
    original = worker_pb2.Step()
    original.CopyFrom(step)
    runner = make_runner(load_model("v2_plain"))
    plain = runner.execute(step)
    record = SessionRecord(tmp_path / "record")
    answer = record.around(runner.execute, runner.model_info().max_logprobs)(step)
    record.close()
    assert list(answer.sequences) == list(plain.sequences)
    recorded_step, recorded = read_record(tmp_path / "record")
    assert step == recorded_step.step == original
    samples = recorded.result.sequences[0].samples
    assert [len(sample.logprobs.top) for sample in samples] == [2, 2, 2, 5, 2, 0]
    assert [len(logprobs.top) for logprobs in recorded.result.sequences[1].prompt_logprobs] == [2, 2]
    assert [sample.token_id for sample in samples] == [s.token_id for s in plain.sequences[0].samples]

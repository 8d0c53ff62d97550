"""`triptych replay`: executes what a worker recorded on another worker, up to the first difference.

Each step has the recorded tokens, so that a difference in one step does not cause others in later steps.
"""

import asyncio
import operator
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc
from pydantic import Field
from triptych.v1 import worker_pb2, worker_pb2_grpc

from services.cli.call_failure import print_failure
from services.cli.replay_difference import first_difference
from services.worker.session.best_logprobs import with_best_logprobs
from services.worker.session.record import RecordError, read_record
from shared.config import ConfigError, ListenAddress, TlsConfig
from shared.grpc_client import create_channel


class ReplayConfig(TlsConfig):
    """What `replay` takes besides the file."""

    worker: ListenAddress = Field(
        description="The worker, HOST:PORT. A scheduler that uses it is fenced and serves no more."
    )
    tolerance: float = Field(
        0.01, ge=0, description="Recorded log-probabilities that differ by no more count as equal."
    )


@dataclass
class RecordedSession:
    """One session of the file: how it was opened, and each step with its result, if it was answered."""

    asked: worker_pb2.OpenSession
    opened: worker_pb2.SessionOpened = field(default_factory=worker_pb2.SessionOpened)
    steps: list[tuple[worker_pb2.Step, worker_pb2.StepResult | None]] = field(default_factory=list)


def replay(file: str, config: ReplayConfig) -> int:
    """Prints the first difference, or how much was equal. Exit code: 0 equal, 1 different, 2 error."""
    sessions = list(read_sessions(Path(file)))
    try:
        difference = asyncio.run(_replay(sessions, config))
    except grpc.aio.AioRpcError as error:
        print_failure(config.worker, error)
        return 2
    if difference is not None:
        print(difference)
        return 1
    _print_equal(sessions)
    return 0


def _print_equal(sessions: list[RecordedSession]) -> None:
    """How much was compared, and what could not be."""
    steps = [result for session in sessions for _, result in session.steps]
    results = [result for result in steps if result is not None]
    print(f"equal: {len(results)} steps, sessions: {len(sessions)}")
    if len(results) < len(steps):
        print(f"steps executed without a recorded result to compare: {len(steps) - len(results)}")
    samples = [sample for result in results for sequence in result.sequences for sample in sequence.samples]
    num_bare = sum(sample.HasField("token_id") and not sample.HasField("logprobs") for sample in samples)
    if num_bare:
        bare = f"{num_bare} of {len(samples)} samples have no recorded log-probabilities"
        print(f"{bare}: only their tokens were compared")


def read_sessions(path: Path) -> Iterator[RecordedSession]:
    """The file's sessions. ConfigError if it is not a record, or holds none."""
    session: RecordedSession | None = None
    try:
        for message in read_record(path):
            kind = message.WhichOneof("message")
            if kind == "open":
                if session is not None:
                    yield session
                session = RecordedSession(message.open)
            elif session is None:
                raise ConfigError(f"{str(path)!r} begins with a {kind}; a record begins with a session")
            elif kind == "opened":
                session.opened = message.opened
            elif kind == "step":
                session.steps.append((message.step, None))
            elif session.steps:
                session.steps[-1] = (session.steps[-1][0], message.result)
    except (OSError, RecordError) as error:
        raise ConfigError(f"cannot read the record: {error}") from None
    if session is None:
        raise ConfigError(f"{str(path)!r} holds no session")
    yield session


async def _replay(sessions: list[RecordedSession], config: ReplayConfig) -> str | None:
    """The first difference. Raises ConfigError if the worker cannot run the record, or grpc's error."""
    # One generation for all: the worker would refuse a lower one, so a second replay may follow the first.
    generation = max(session.asked.generation for session in sessions)
    session_id = ""
    async with create_channel(config.worker, config) as channel:
        stub = worker_pb2_grpc.WorkerServiceStub(channel)
        for session in sessions:
            call = stub.Execute()
            resumed = session_id if session.opened.cache_retained else ""
            asked = worker_pb2.OpenSession(
                scheduler_id="replay", generation=generation, resume_session_id=resumed
            )
            opened = (await _ask(call, worker_pb2.ExecuteRequest(open=asked))).opened
            session_id = opened.session_id
            _check_sizes(session.opened, opened)
            for step, recorded in session.steps:
                asking = with_best_logprobs(step, opened.model_info.max_logprobs)
                replayed = (await _ask(call, worker_pb2.ExecuteRequest(step=asking))).result
                difference = recorded and first_difference(step, recorded, replayed, config.tolerance)
                if difference:
                    return difference
            await call.done_writing()
            await call.code()
    return None


async def _ask(call: Any, request: worker_pb2.ExecuteRequest) -> worker_pb2.ExecuteResponse:
    """Sends one message and returns its answer. Raises AioRpcError if the worker ends the session instead."""
    with suppress(asyncio.InvalidStateError):  # it has ended: reading says how
        await call.write(request)
    response: worker_pb2.ExecuteResponse = await call.read()
    return response


def _check_sizes(recorded: worker_pb2.SessionOpened, opened: worker_pb2.SessionOpened) -> None:
    """Another dtype or backend is what a replay is for; another vocabulary or cache cannot run the steps."""
    ours, theirs = opened.model_info, recorded.model_info
    for name, fits, least in (
        ("vocab_size", operator.eq, ""),
        ("block_size", operator.eq, ""),
        ("num_blocks", operator.ge, "at least "),
        ("max_num_batched_tokens", operator.ge, "at least "),
        ("max_model_len", operator.ge, "at least "),
    ):
        given, needed = getattr(ours, name), getattr(theirs, name)
        if not fits(given, needed):
            raise ConfigError(f"the worker's {name} is {given}; the record needs {least}{needed}")
    if not opened.cache_retained and recorded.cache_retained:
        raise ConfigError("the record begins with a session that resumes one before it")

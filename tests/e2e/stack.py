"""Three real processes with the embedded model, and the way to ask them."""

import asyncio
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import grpc
from triptych.v1 import render_pb2, render_pb2_grpc, types_pb2

from shared.wire import CLIENT_OPTIONS
from tests.support.processes import ServiceProcess, started

TEXT_SERVICE = "triptych.v1.TextService"
# A worker's flags where answers are compared token for token: rounded to bfloat16, as a processor with AMX
# computes by default, a sum of another batch's shape is another number now and then.
EXACT = ("--dtype", "float32")


@dataclass
class Stack:
    """The services, each started by a command of its own."""

    worker: ServiceProcess
    scheduler: ServiceProcess
    render: ServiceProcess

    def wait_until_ready(self) -> None:
        """Until a chat works."""
        self.render.wait_until_ready(TEXT_SERVICE)


@contextmanager
def running_stack(*worker_flags: str, scheduler_flags: Iterable[str] = ()) -> Iterator[Stack]:
    """A worker, its scheduler, their renderer."""
    with ExitStack() as services:
        worker = services.enter_context(started("worker", *worker_flags))
        scheduler = services.enter_context(
            started("scheduler", "--worker", str(worker.address), *scheduler_flags)
        )
        render = services.enter_context(started("render", "--scheduler", str(scheduler.address)))
        stack = Stack(worker, scheduler, render)
        stack.wait_until_ready()
        yield stack


@dataclass(frozen=True)
class Answer:
    """A whole answer, put together from its deltas."""

    text: str
    token_ids: tuple[int, ...]
    finished: render_pb2.TextFinished


def chat_request(messages: Iterable[Mapping[str, Any]], **params: Any) -> render_pb2.ChatRequest:
    """params: of SamplingParams."""
    return render_pb2.ChatRequest(
        request=render_pb2.RenderChatRequest(
            messages=[render_pb2.ChatMessage(**message) for message in messages],
            sampling_params=types_pb2.SamplingParams(**params),
        )
    )


async def ask(
    stub: "render_pb2_grpc.TextServiceAsyncStub", messages: Iterable[Mapping[str, str]], **params: object
) -> Answer:
    """One chat completion. Greedy unless `params` (SamplingParams) say otherwise."""
    request = chat_request(messages, **{"temperature": 0, **params})
    text = ""
    token_ids: list[int] = []
    finished: list[render_pb2.TextFinished] = []
    async for response in stub.Chat(request):
        text += response.event.delta.text
        token_ids += response.event.delta.token_ids
        if response.event.HasField("finished"):
            finished.append(response.event.finished)
    (only,) = finished
    return Answer(text, tuple(token_ids), only)


async def ask_all(
    stack: Stack, chats: Iterable[Iterable[Mapping[str, str]]], at_once: int, **params: object
) -> list[Answer]:
    """The answers to all chats, in their order, so many in flight at any time."""
    places = asyncio.Semaphore(at_once)
    async with grpc.aio.insecure_channel(str(stack.render.address), options=CLIENT_OPTIONS) as channel:
        stub = render_pb2_grpc.TextServiceStub(channel)

        async def ask_one(messages: Iterable[Mapping[str, str]]) -> Answer:
            async with places:
                return await ask(stub, messages, **params)

        return await asyncio.gather(*map(ask_one, chats))

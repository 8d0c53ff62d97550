"""`triptych chat`: one answer, or a conversation, streamed to the terminal."""

import asyncio
import sys
from collections.abc import Iterator
from contextlib import suppress
from time import perf_counter

import grpc
from pydantic import Field
from rich.console import Console
from triptych.v1 import render_pb2, render_pb2_grpc, types_pb2

from services.cli.call_failure import print_failure
from services.cli.timings import timings_table
from shared.config import ListenAddress, TlsConfig
from shared.grpc_client import create_channel
from shared.wire import Address


class ChatConfig(TlsConfig):
    """What `chat` takes besides the message."""

    render: ListenAddress = Field(Address("127.0.0.1", 50051), description="The render service, HOST:PORT.")
    timings: bool = Field(False, description="Show where the time went, per boundary.")


class Conversation:
    """The messages so far, and the way to say the next one."""

    def __init__(self, stub: "render_pb2_grpc.TextServiceAsyncStub", show_timings: bool) -> None:
        self._stub = stub
        self.show_timings = show_timings
        self.messages: list[render_pb2.ChatMessage] = []

    async def say(self, text: str) -> str:
        """Streams the answer to stdout, the reasoning to stderr, and keeps both turns.

        Raises grpc.aio.AioRpcError.
        """
        messages = [*self.messages, render_pb2.ChatMessage(role="user", content=text)]
        request = render_pb2.ChatRequest(request=render_pb2.RenderChatRequest(messages=messages))
        start = perf_counter()
        first_text: float | None = None
        answer = ""
        finished = render_pb2.TextFinished()
        async for response in self._stub.Chat(request):
            match response.event.WhichOneof("event"):
                case "delta":
                    first_text = first_text or perf_counter()
                    answer += response.event.delta.text
                    _show(response.event.delta)
                case "finished":
                    finished = response.event.finished
        seconds = perf_counter() - start
        print()
        if finished.finish_reason == types_pb2.FINISH_REASON_LENGTH:
            print("(cut: the limit of tokens is reached)", file=sys.stderr)
        if self.show_timings:
            Console().print(timings_table(seconds, (first_text or perf_counter()) - start, finished))
        self.messages = [*messages, render_pb2.ChatMessage(role="assistant", content=answer)]
        return answer


def _show(delta: render_pb2.TextDelta) -> None:
    if delta.reasoning_content:
        Console(stderr=True, soft_wrap=True).print(
            delta.reasoning_content, end="", style="dim", markup=False, highlight=False, emoji=False
        )
    print(delta.text, end="", flush=True)


def chat(message: str, config: ChatConfig) -> int:
    """Says the message, or what is typed if there is none. Returns the exit code."""
    with asyncio.Runner() as runner:
        channel = runner.run(_connect(config))
        conversation = Conversation(render_pb2_grpc.TextServiceStub(channel), config.timings)
        try:
            for text in [message] if message else _typed():
                runner.run(conversation.say(text))
        except grpc.aio.AioRpcError as error:
            print_failure(config.render, error)
            return 1
        finally:
            runner.run(channel.close())
    return 0


async def _connect(config: ChatConfig) -> grpc.aio.Channel:
    """A channel belongs to the loop that it is made on."""
    return create_channel(config.render, config)


def _typed() -> Iterator[str]:
    """Lines from stdin. Read outside the event loop, so that Ctrl-C ends the wait for one."""
    is_terminal = sys.stdin.isatty()
    if is_terminal:
        print("Ctrl-D ends the conversation.")
    with suppress(EOFError):
        while True:
            if (text := input("> " if is_terminal else "")).strip():
                yield text

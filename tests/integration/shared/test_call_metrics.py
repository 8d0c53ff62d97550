"""Both sides of a boundary count alike, and no caller adds a series (G10)."""

import asyncio
import random
import secrets
from typing import Any

import grpc
import pytest
from prometheus_client import REGISTRY
from triptych.v1 import scheduler_pb2

from tests.integration.shared.fakes import (
    ABORT,
    GENERATE,
    GET_STATUS,
    Serving,
    event,
    failure_of,
    get_status,
    metric,
    serving,
    until,
)

REQUEST = scheduler_pb2.GenerateRequest(request_id="x" * 100)
SIDES = ("server", "client")


class Change:
    """How much metrics grew since this was made."""

    def __init__(self) -> None:
        self._before = self._now()

    def __call__(self, name: str, **labels: str) -> float:
        key = (name, tuple(sorted(labels.items())))
        return self._now().get(key, 0.0) - self._before.get(key, 0.0)

    @staticmethod
    def _now() -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
        return {
            (sample.name, tuple(sorted(sample.labels.items()))): sample.value
            for family in REGISTRY.collect()
            for sample in family.samples
        }


async def three_events(request: Any, context: Any) -> Any:
    for _ in range(3):
        yield event("y" * 100)


async def test_calls_bytes_and_time_are_counted_on_both_sides() -> None:
    change = Change()
    async with serving(Generate=three_events, GetStatus=get_status) as fake:
        for _ in range(2):
            async for _ in fake.stub.Generate(REQUEST):
                pass
        await fake.stub.GetStatus(scheduler_pb2.GetStatusRequest())
        await until(lambda: change("triptych_client_requests_total", method=GET_STATUS, code="OK") == 1)
    for side in SIDES:
        assert change(f"triptych_{side}_requests_total", method=GENERATE, code="OK") == 2
        assert change(f"triptych_{side}_requests_total", method=GET_STATUS, code="OK") == 1
        assert change(f"triptych_{side}_latency_seconds_count", method=GENERATE) == 2
        assert change(f"triptych_{side}_latency_seconds_sum", method=GENERATE) > 0
    requests, responses = 2 * REQUEST.ByteSize(), 2 * 3 * event("y" * 100).ByteSize()
    assert change("triptych_client_sent_bytes_total", method=GENERATE) == requests
    assert change("triptych_server_received_bytes_total", method=GENERATE) == requests
    assert change("triptych_server_sent_bytes_total", method=GENERATE) == responses
    assert change("triptych_client_received_bytes_total", method=GENERATE) == responses


async def test_failures_are_counted_by_their_code() -> None:
    change = Change()
    async with serving() as fake:  # the generated servicer answers UNIMPLEMENTED by an exception
        await failure_of(fake.stub.AbortRequest(scheduler_pb2.AbortRequestRequest()))
        await until(lambda: change("triptych_client_latency_seconds_count", method=ABORT) == 1)
        await asyncio.sleep(0.05)
    counted = {
        (side, code.name): change(f"triptych_{side}_requests_total", method=ABORT, code=code.name)
        for side in SIDES
        for code in grpc.StatusCode
    }
    assert sum(counted.values()) == 2
    assert counted["server", "OK"] == counted["client", "OK"] == 0


async def in_flight(fake: Serving) -> list[float]:
    return [metric(f"triptych_{side}_in_flight_requests", method=GENERATE) for side in SIDES]


@pytest.mark.parametrize("how_it_ends", ["well", "cancelled"])
async def test_calls_in_flight_rise_and_fall_however_they_end(how_it_ends: str) -> None:
    finish = asyncio.Event()

    async def generate(request: Any, context: Any) -> Any:
        yield event()
        await finish.wait()

    async with serving(Generate=generate) as fake:
        before = await in_flight(fake)
        calls = [fake.stub.Generate(REQUEST) for _ in range(3)]
        for call in calls:
            await call.read()
        assert await in_flight(fake) == [each + 3 for each in before]
        if how_it_ends == "well":
            finish.set()
            assert [await call.code() for call in calls] == [grpc.StatusCode.OK] * 3
        else:
            for call in calls:
                call.cancel()
        async with asyncio.timeout(5):
            while await in_flight(fake) != before:  # noqa: ASYNC110 gauges have no event
                await asyncio.sleep(0.01)


async def test_a_thousand_random_requests_add_no_series() -> None:
    async with serving(Generate=three_events, GetStatus=get_status) as fake:

        async def call() -> None:
            request = scheduler_pb2.GenerateRequest(
                request_id=secrets.token_hex(8), model=secrets.token_hex(8), cache_salt=secrets.token_hex(8)
            )
            metadata = [("x-request-id", secrets.token_hex(8)), ("x-tenant", secrets.token_hex(8))]
            if random.random() < 0.1:
                path = f"/{secrets.token_hex(4)}.{secrets.token_hex(4)}/{secrets.token_hex(4)}"
                # Somebody else's client: ours is only ever asked for methods that exist.
                await failure_of(fake.channel._channel.unary_unary(path)(b""))  # type: ignore[attr-defined]
            else:
                async for _ in fake.stub.Generate(request, metadata=metadata):
                    pass

        async def count_series() -> int:
            return sum(len(family.samples) for family in REGISTRY.collect())

        for _ in range(40):
            await call()
        series = await count_series()
        for _ in range(20):
            await asyncio.gather(*(call() for _ in range(50)))
        assert await count_series() == series

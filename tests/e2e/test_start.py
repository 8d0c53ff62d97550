"""Three commands, in any order, find each other; each is whole by itself."""

import itertools
from contextlib import ExitStack
from urllib.request import urlopen

import grpc
import pytest
from grpc_health.v1 import health_pb2
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import ProtoReflectionDescriptorDatabase

from tests.e2e.stack import TEXT_SERVICE, Stack, ask_all
from tests.support.processes import READINESS, ServiceProcess, free_port, started

_SERVING = health_pb2.HealthCheckResponse.SERVING
_NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING


@pytest.mark.parametrize(
    "order", list(itertools.permutations(["worker", "scheduler", "render"])), ids="-".join
)
async def test_started_in_any_order_they_find_each_other(order: tuple[str, ...]) -> None:
    ports = {name: free_port() for name in order}
    flags = {
        "worker": [],
        "scheduler": ["--worker", f"127.0.0.1:{ports['worker']}"],
        "render": ["--scheduler", f"127.0.0.1:{ports['scheduler']}"],
    }
    with ExitStack() as services:
        running = {
            name: services.enter_context(started(name, *flags[name], port=ports[name])) for name in order
        }
        stack = Stack(**running)
        stack.wait_until_ready()
        (answer,) = await ask_all(stack, [[{"role": "user", "content": "Repeat: red"}]], at_once=1)
    assert answer.text == "Sure: red"


@pytest.mark.parametrize("name", ["worker", "scheduler", "render"])
def test_each_alone_answers_health_reflection_and_metrics(name: str) -> None:
    with started(name) as service:
        if name == "scheduler":
            assert service.health(READINESS[name]) == _NOT_SERVING  # it has no worker
        else:
            service.wait_until_ready()
        if name == "render":
            assert service.health(TEXT_SERVICE) == _NOT_SERVING  # it has no scheduler
        assert service.health("") == _SERVING
        assert READINESS[name] in _reflected_services(service)
        with urlopen(f"http://{service.metrics_address}/metrics") as response:
            assert b"triptych_server_requests_total" in response.read()


def _reflected_services(service: ServiceProcess) -> list[str]:
    with grpc.insecure_channel(str(service.address)) as channel:
        return list(ProtoReflectionDescriptorDatabase(channel).get_services())

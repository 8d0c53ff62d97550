"""What callers without our stubs see: liveness, readiness, and the contract itself."""

import asyncio
from typing import Any

import grpc
import pytest
from google.protobuf import message_factory
from google.protobuf.descriptor_pool import DescriptorPool
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import ProtoReflectionDescriptorDatabase
from triptych.v1 import scheduler_pb2

from tests.integration.shared.fakes import SERVICE, Serving, failure_of, get_status, metric, serving, until

SERVING = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING


async def health(fake: Serving, service: str) -> Any:
    stub = health_pb2_grpc.HealthStub(fake.channel)
    return (await stub.Check(health_pb2.HealthCheckRequest(service=service))).status


async def test_the_empty_name_is_liveness_and_the_full_name_readiness() -> None:
    async with serving() as fake:
        for is_ready in (False, True, False):
            await fake.server.set_ready(SERVICE, is_ready)
            assert await health(fake, SERVICE) == (SERVING if is_ready else NOT_SERVING)
            assert await health(fake, "") == SERVING
            assert metric("triptych_ready", grpc_service=SERVICE) == is_ready


async def test_a_service_that_is_not_here_is_not_found() -> None:
    async with serving() as fake:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await health(fake, "SchedulerService")
        assert caught.value.code() is grpc.StatusCode.NOT_FOUND


async def test_a_draining_server_is_alive_and_not_ready_whatever_it_is_told() -> None:
    async def endless(request: Any, context: Any) -> Any:
        await asyncio.Event().wait()
        yield

    async with serving(Generate=endless) as fake:
        call = fake.stub.Generate(scheduler_pb2.GenerateRequest())
        await until(lambda: len(fake.server.drain.calls) == 1)
        fake.server.stop()
        await until(lambda: fake.server.drain.draining)
        await fake.server.set_ready(SERVICE, True)
        assert await health(fake, SERVICE) == NOT_SERVING
        assert await health(fake, "") == SERVING
        assert metric("triptych_ready", grpc_service=SERVICE) == 0
        call.cancel()


async def test_a_watcher_sees_readiness_change() -> None:
    async with serving() as fake:
        watch = health_pb2_grpc.HealthStub(fake.channel).Watch(health_pb2.HealthCheckRequest(service=SERVICE))
        seen = [(await watch.read()).status]
        for is_ready in (False, True):
            await fake.server.set_ready(SERVICE, is_ready)
            seen.append((await watch.read()).status)
        assert seen == [SERVING, NOT_SERVING, SERVING]
        watch.cancel()


async def test_a_generic_client_makes_a_real_call_by_reflection_alone() -> None:
    async with serving(GetStatus=get_status) as fake:
        services, response = await asyncio.to_thread(call_by_reflection, str(fake.address))
    assert set(services) == {SERVICE, "grpc.health.v1.Health", "grpc.reflection.v1alpha.ServerReflection"}
    assert response.num_waiting == 3


def call_by_reflection(address: str) -> tuple[list[str], Any]:
    """As grpcurl does: nothing of ours is imported; the descriptors are the server's."""
    with grpc.insecure_channel(address) as channel:
        database = ProtoReflectionDescriptorDatabase(channel)
        method = DescriptorPool(database).FindServiceByName(SERVICE).FindMethodByName("GetStatus")
        request_class = message_factory.GetMessageClass(method.input_type)
        response_class = message_factory.GetMessageClass(method.output_type)
        call = channel.unary_unary(
            f"/{SERVICE}/{method.name}", request_class.SerializeToString, response_class.FromString
        )
        return list(database.get_services()), call(request_class(), timeout=5)


async def test_a_method_that_is_not_there_is_unimplemented() -> None:
    async with serving() as fake:
        for method in (f"/{SERVICE}/Nothing", "/no.such.Service/Nothing"):
            call: Any = fake.channel.unary_unary(method, lambda _: b"", lambda data: data)
            error = await failure_of(call(None))
            assert error.code() is grpc.StatusCode.UNIMPLEMENTED

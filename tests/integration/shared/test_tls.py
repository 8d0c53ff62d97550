"""TLS and mutual TLS between our own client and server, from certificate files."""

from pathlib import Path
from typing import Any

import grpc
import pytest
from triptych.v1 import scheduler_pb2

from shared.config import TlsConfig
from tests.integration.shared.fakes import PLAIN, get_status, serving
from tests.support.certificates import Authority


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path)


async def outcome(client: TlsConfig, server: dict[str, Any]) -> grpc.StatusCode:
    """How a call ends between these two."""
    async with serving(tls=client, config=server, GetStatus=get_status) as fake:
        code: grpc.StatusCode = await fake.stub.GetStatus(scheduler_pb2.GetStatusRequest(), timeout=5).code()
        return code


async def test_a_client_that_trusts_the_authority_is_served(authority: Authority) -> None:
    server = authority.issue("server")
    assert await outcome(TlsConfig(tls_ca=authority.path), server) is grpc.StatusCode.OK


async def test_a_client_that_trusts_another_authority_refuses_the_server(
    authority: Authority, tmp_path: Path
) -> None:
    other = Authority(tmp_path / "other")
    assert (
        await outcome(TlsConfig(tls_ca=other.path), authority.issue("server")) is grpc.StatusCode.UNAVAILABLE
    )


async def test_a_server_for_another_host_is_refused(authority: Authority) -> None:
    server = authority.issue("server", host="elsewhere.example")
    assert await outcome(TlsConfig(tls_ca=authority.path), server) is grpc.StatusCode.UNAVAILABLE


async def test_plain_text_to_a_tls_server_is_refused(authority: Authority) -> None:
    assert await outcome(PLAIN, authority.issue("server")) is grpc.StatusCode.UNAVAILABLE


async def test_tls_to_a_plain_server_is_refused(authority: Authority) -> None:
    assert await outcome(TlsConfig(tls_ca=authority.path), {}) is grpc.StatusCode.UNAVAILABLE


async def test_mutual_tls_serves_only_those_whom_the_authority_signed(
    authority: Authority, tmp_path: Path
) -> None:
    server = {**authority.issue("server"), "tls_ca": authority.path, "tls_client_auth": True}
    known = TlsConfig(tls_ca=authority.path, **authority.issue("client"))
    stranger = TlsConfig(tls_ca=authority.path, **Authority(tmp_path / "other").issue("client"))
    nameless = TlsConfig(tls_ca=authority.path)
    assert await outcome(known, server) is grpc.StatusCode.OK
    assert await outcome(stranger, server) is grpc.StatusCode.UNAVAILABLE
    assert await outcome(nameless, server) is grpc.StatusCode.UNAVAILABLE


async def test_without_client_auth_a_certificate_is_not_asked_for(authority: Authority) -> None:
    server = {**authority.issue("server"), "tls_ca": authority.path}
    assert await outcome(TlsConfig(tls_ca=authority.path), server) is grpc.StatusCode.OK

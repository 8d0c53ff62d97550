"""Addresses, and options that both ends derive from one number."""

import socket

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shared.wire import MAX_MESSAGE_BYTES, Address, client_options, server_options

hosts = st.one_of(
    st.ip_addresses(v=4).map(str),
    st.ip_addresses(v=6).map(str),
    st.from_regex(r"[a-z0-9]([a-z0-9-]{0,20}[a-z0-9])?(\.[a-z]{2,5})?", fullmatch=True),
)


@given(hosts, st.integers(0, 65535))
def test_an_address_is_read_back_as_it_is_written(host: str, port: int) -> None:
    assert Address.parse(str(Address(host, port))) == Address(host, port)


@pytest.mark.parametrize(
    "text",
    [
        "", ":", "host", "host:", ":50051", "50051", "[]:1", "host:65536", "host:-1", "host:1.5", "host:0x1",
        "host: 1", " host:1", "host:1 ", "host:1\n", "::1:50051", "[::1]50051", "[::1", "tcp://10.0.0.1:50051",
        "http://host:1", "a,b:1", "host:٣", "host:123456", "ho st:1", "user@host:1",
    ],
)  # fmt: skip
def test_what_is_not_host_and_port_is_refused_with_a_sentence(text: str) -> None:
    with pytest.raises(ValueError, match="not HOST:PORT, with a port from 0 to 65535"):
        Address.parse(text)


@given(st.text())
def test_any_text_is_an_address_or_refused(text: str) -> None:
    try:
        address = Address.parse(text)
    except ValueError:
        return
    assert Address.parse(str(address)) == address


def test_only_a_listener_makes_an_address_taken() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        taken = Address("127.0.0.1", listener.getsockname()[1])
        with pytest.raises(OSError, match="in use"):
            taken.check_free()
    taken.check_free()


@pytest.mark.parametrize("seconds", [0.2, 10.0])
def test_a_client_s_pings_are_within_the_server_s_tolerance(seconds: float) -> None:
    client, server = dict(client_options(seconds)), dict(server_options(seconds))
    interval = client["grpc.keepalive_time_ms"]
    assert interval == seconds * 1000
    # The key that gRPC 1.85 reads; see tests/integration/shared/test_keepalive.py.
    assert server["grpc.http2.min_ping_interval_without_data_ms"] < interval


def test_both_ends_have_one_message_bound() -> None:
    for options in (dict(client_options()), dict(server_options())):
        assert options["grpc.max_send_message_length"] == MAX_MESSAGE_BYTES
        assert options["grpc.max_receive_message_length"] == MAX_MESSAGE_BYTES

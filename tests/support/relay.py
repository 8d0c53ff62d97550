"""A way to a service through the test, which passes on what goes over it as it likes."""

import asyncio
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import TypeAlias

from shared.wire import Address

# Passes on one direction of one connection, until it ends.
Pipe: TypeAlias = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


async def copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """As it comes."""
    while data := await reader.read(65536):
        writer.write(data)
    writer.close()


def _connected(address: Address) -> socket.socket:
    """It takes little ahead: what is passed on slowly waits at the sender."""
    connection = socket.socket()
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 16384)
    connection.connect((address.host, address.port))
    return connection


@asynccontextmanager
async def relayed(address: Address, *, requests: Pipe = copy, answers: Pipe) -> AsyncIterator[Address]:
    """Where to connect in place of `address`."""
    connections: set[asyncio.Task[None]] = set()

    async def relay(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connections.add(asyncio.current_task())  # type: ignore[arg-type]
        far_reader, far_writer = await asyncio.open_connection(sock=_connected(address), limit=4096)
        both = (requests(reader, far_writer), answers(far_reader, writer))
        await asyncio.gather(*both, return_exceptions=True)

    server = await asyncio.start_server(relay, "127.0.0.1", 0)
    try:
        yield Address(*server.sockets[0].getsockname())
    finally:
        server.close()
        for connection in connections:
            connection.cancel()

"""What the scheduler sends, frame by frame, as HTTP/2 has it (RFC 9113, section 4.1)."""

import asyncio
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import grpc
from triptych.v1 import scheduler_pb2_grpc

from shared.wire import Address

HEADERS, DATA = 1, 0
END_STREAM = 0x1


@asynccontextmanager
async def recorded_frames(address: Address) -> AsyncIterator[tuple[Any, list[tuple[int, int]]]]:
    """A stub whose connection goes through a relay that notes the (type, flags) of each stream frame that
    the scheduler sends."""
    frames: list[tuple[int, int]] = []

    async def relay(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        back_reader, back_writer = await asyncio.open_connection(address.host, address.port)
        await asyncio.gather(_copy(reader, back_writer), _copy_frames(back_reader, writer, frames))

    server = await asyncio.start_server(relay, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        yield scheduler_pb2_grpc.SchedulerServiceStub(channel), frames
    server.close()


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(65536):
        writer.write(data)
    writer.close()


async def _copy_frames(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, frames: list[tuple[int, int]]
) -> None:
    """A frame is a 24-bit length, type, flags, a 32-bit stream id, and so many bytes."""
    while len(header := await reader.read(9)) == 9:
        payload = await reader.readexactly(int.from_bytes(header[:3], "big"))
        (stream_id,) = struct.unpack(">I", header[5:])
        if stream_id and header[3] in (HEADERS, DATA):
            frames.append((header[3], header[4]))
        writer.write(header + payload)
    writer.close()

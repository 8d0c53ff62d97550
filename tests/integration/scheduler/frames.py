"""What the scheduler sends, frame by frame, as HTTP/2 has it (RFC 9113, section 4.1)."""

import asyncio
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import grpc
from triptych.v1 import scheduler_pb2_grpc

from shared.wire import Address
from tests.support.relay import relayed

HEADERS, DATA = 1, 0
END_STREAM = 0x1


@asynccontextmanager
async def recorded_frames(address: Address) -> AsyncIterator[tuple[Any, list[tuple[int, int]]]]:
    """A stub whose connection goes through a relay that notes the (type, flags) of each stream frame that
    the scheduler sends."""
    frames: list[tuple[int, int]] = []

    answers = partial(_copy_frames, frames)
    async with (
        relayed(address, answers=answers) as relay,
        grpc.aio.insecure_channel(str(relay)) as channel,
    ):
        yield scheduler_pb2_grpc.SchedulerServiceStub(channel), frames


async def _copy_frames(
    frames: list[tuple[int, int]], reader: asyncio.StreamReader, writer: asyncio.StreamWriter
) -> None:
    """A frame is a 24-bit length, type, flags, a 32-bit stream id, and so many bytes."""
    while len(header := await reader.read(9)) == 9:
        payload = await reader.readexactly(int.from_bytes(header[:3], "big"))
        (stream_id,) = struct.unpack(">I", header[5:])
        if stream_id and header[3] in (HEADERS, DATA):
            frames.append((header[3], header[4]))
        writer.write(header + payload)
    writer.close()

"""How a command reports a failed call."""

import sys

import grpc

from shared.wire import Address


def print_failure(address: Address, error: grpc.aio.AioRpcError) -> None:
    details = " ".join((error.details() or "").split())
    print(f"triptych: {address}: {error.code().name}: {details}", file=sys.stderr)

"""The scheduler's flags and environment variables."""

from typing import Annotated, Any

from pydantic import BeforeValidator, Field
from pydantic_settings import NoDecode

from shared.config import ListenAddress, ServiceConfig
from shared.wire import Address


def _parse_addresses(value: Any) -> Any:
    if isinstance(value, str):
        value = value.split(",")
    addresses = tuple(each if isinstance(each, Address) else Address.parse(each.strip()) for each in value)
    if len(set(addresses)) < len(addresses):
        raise ValueError("the same worker is named twice")
    return addresses


WorkerAddresses = Annotated[tuple[Address, ...], NoDecode, BeforeValidator(_parse_addresses)]


class SchedulerConfig(ServiceConfig):
    listen: ListenAddress = Field(
        Address("127.0.0.1", 50052), description="Where the service listens, HOST:PORT."
    )
    worker: WorkerAddresses = Field(
        (Address("127.0.0.1", 50053),),
        min_length=1,
        description="The pool: HOST:PORT of each worker, separated by commas.",
    )
    max_num_seqs: int = Field(64, ge=1, description="Most sequences in one worker's running batch.")
    max_num_batched_tokens: int = Field(
        2048, ge=1, description="Most tokens in one step; the worker's own limit applies too."
    )
    max_waiting: int = Field(
        1024, ge=0, description="Most requests that wait; more are refused (QUEUE_FULL)."
    )
    priority_aging: float = Field(
        10.0, gt=0, description="Seconds of waiting that raise a request's priority by one."
    )
    output_buffer_bytes: int = Field(
        1 << 20,
        ge=1024,
        description="What a slow reader may leave unread before its request ends (SLOW_READER).",
    )

"""`make demo`: `up` with the embedded model, two facts told, asked back, and the time per boundary."""

import asyncio
import sys

from triptych.v1 import render_pb2_grpc

from services.cli.chat import Conversation
from services.cli.processes import ServiceProcess, is_free
from services.cli.up import Supervisor, UpConfig, plan
from shared.config import ConfigError, TlsConfig
from shared.grpc_client import create_channel
from shared.wire import Address

# Each message, and what its answer must contain.
_SCRIPT = (
    ("My name is Nadia.", "Nadia"),
    ("The code for tulip is 4821.", "4821"),
    ("What is my name?", "Nadia"),
    ("What is the code for tulip?", "4821"),
)


def main() -> int:
    """Returns the exit code: 0 if every answer is right."""
    config = UpConfig(base_port=_free_base_port(), verbose=True)
    services = plan(config, {"log_level": "warning"})
    supervisor = Supervisor(services, config)
    try:
        supervisor.start()
        code = supervisor.wait_until_ready()
        return asyncio.run(_converse(services[0], config)) if code is None else code
    finally:
        supervisor.stop()


async def _converse(render: ServiceProcess, tls: TlsConfig) -> int:
    async with create_channel(render.address, tls) as channel:
        conversation = Conversation(render_pb2_grpc.TextServiceStub(channel), show_timings=False)
        for index, (text, expected) in enumerate(_SCRIPT):
            conversation.show_timings = index == len(_SCRIPT) - 1
            print(f"you   {text}\nmodel ", end="", flush=True)
            answer = await conversation.say(text)
            if expected not in answer:
                print(f"the answer does not contain {expected!r}", file=sys.stderr)
                return 1
    return 0


def _free_base_port() -> int:
    """A port with two free ones after it, and three free ones 1000 above, for the metrics."""
    for base in range(50051, 60000, 10):
        ports = [base + offset for offset in range(3)]
        if all(is_free(Address("127.0.0.1", port + above)) for port in ports for above in (0, 1000)):
            return base
    raise ConfigError("no free ports between 50051 and 60000")


if __name__ == "__main__":
    sys.exit(main())

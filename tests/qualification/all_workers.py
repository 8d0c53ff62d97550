"""Workers for several checkpoints in one process: `python -m tests.qualification.all_workers FOLDER=PORT …`.

Each is the service as `triptych worker` runs it, with its own port, sessions and cache. They share a process
because importing torch takes longer than all that they are asked.
"""

import asyncio
import sys
from pathlib import Path

from services.worker import serve
from services.worker.config import WorkerConfig
from shared.config import LogLevel
from shared.log import configure_logging
from shared.wire import Address

NUM_BLOCKS = 600
BLOCK_SIZE = 4


def config_of(folder: str, port: str) -> WorkerConfig:
    """Small blocks, so that every sequence crosses many."""
    return WorkerConfig(
        model=Path(folder),
        listen=Address("127.0.0.1", int(port)),
        metrics_listen=Address("127.0.0.1", 0),
        dtype="float32",
        num_blocks=NUM_BLOCKS,
        block_size=BLOCK_SIZE,
        threads=1,
    )


async def main(arguments: list[str]) -> None:
    """Until it is killed."""
    configure_logging("worker", LogLevel.WARNING)
    configs = [config_of(*argument.rsplit("=", 1)) for argument in arguments]
    await asyncio.gather(*(serve._serve(config) for config in configs))


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1:]))

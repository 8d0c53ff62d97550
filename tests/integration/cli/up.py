"""`triptych up` for tests."""

import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import grpc

from shared.wire import Address
from tests.support.processes import TriptychProcess, free_base_port


class Up(TriptychProcess):
    """`triptych up` and its children, whose logs are on stderr unless --log-dir is given."""

    def __init__(self, *flags: str, workers: int = 1, environment: Mapping[str, str] | None = None) -> None:
        base = free_base_port(2 + workers)
        self.addresses = [Address("127.0.0.1", base + offset) for offset in range(2 + workers)]
        self.render = self.addresses[0]
        count = ("--workers", str(workers)) if workers > 1 else ()
        logs = () if "--log-dir" in flags else ("--verbose",)
        super().__init__("up", "--base-port", str(base), *count, *logs, *flags, environment=environment)

    def wait_until_ready(self, seconds: float = 60.0) -> None:
        """Until each service has its line."""
        self.wait_until(lambda: self.stdout.count(" is ready on ") == len(self.addresses), seconds)

    def wait_until_render_answers(self, seconds: float = 60.0) -> None:
        """Earlier: the scheduler and the workers are being started."""
        with grpc.insecure_channel(str(self.render)) as channel:
            ready = grpc.channel_ready_future(channel)
            self.wait_until(ready.done, seconds)

    def wait_until(self, condition: Callable[[], bool], seconds: float = 60.0) -> None:
        deadline = time.monotonic() + seconds
        while not condition():
            assert self.process.poll() is None, self.stdout + self.stderr
            assert time.monotonic() < deadline, self.stdout + self.stderr
            time.sleep(0.05)

    def children(self) -> dict[int, str]:
        """Process id and command of each child that runs. Linux only."""
        found = {}
        for folder in Path("/proc").iterdir():
            if folder.name.isdecimal():
                try:
                    parent = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
                    arguments = (folder / "cmdline").read_text().split("\0")
                except OSError:
                    continue  # it has just ended
                if parent == self.process.pid:
                    found[int(folder.name)] = arguments[3]
        return found


@contextmanager
def up(*flags: str, workers: int = 1, environment: Mapping[str, str] | None = None) -> Iterator[Up]:
    """Started, and killed at the end; its children end with it."""
    process = Up(*flags, workers=workers, environment=environment)
    try:
        yield process
    finally:
        process.close()


def wait_until_gone(pids: Iterable[int], seconds: float = 10.0) -> None:
    """Fails if one of them still runs then."""
    deadline = time.monotonic() + seconds
    for pid in pids:
        while _runs(pid):
            assert time.monotonic() < deadline, f"{pid} still runs"
            time.sleep(0.05)


def _runs(pid: int) -> bool:
    """A zombie does not: it waits for whoever adopted it."""
    try:
        os.kill(pid, 0)
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False

"""Four processes, each of which may die and come back on its port."""

import signal
import time
from contextlib import suppress
from pathlib import Path

from tests.e2e.stack import EXACT, TEXT_SERVICE
from tests.support.processes import ServiceProcess

NAMES = ("worker 0", "worker 1", "scheduler", "render")
FAULTS = ("kill", "terminate", "stop")
# So few blocks that requests are preempted.
_WORKER_FLAGS = ("--num-blocks", "300", "--threads", "1", *EXACT)
# Processes start on busy cores.
_READY_SECONDS = 60.0
_DRAIN_SECONDS = 40.0


class Services:
    """Two workers, their scheduler, its renderer."""

    def __init__(self) -> None:
        workers = [ServiceProcess("worker", *_WORKER_FLAGS) for _ in range(2)]
        pool = ",".join(str(worker.address) for worker in workers)
        scheduler = ServiceProcess("scheduler", "--worker", pool)
        render = ServiceProcess("render", "--scheduler", str(scheduler.address))
        self.by_name = dict(zip(NAMES, (*workers, scheduler, render), strict=True))
        flags = (_WORKER_FLAGS, _WORKER_FLAGS, ("--worker", pool), ("--scheduler", str(scheduler.address)))
        self._flags = dict(zip(NAMES, flags, strict=True))

    @property
    def render(self) -> ServiceProcess:
        """Where callers call."""
        return self.by_name["render"]

    def disturb(self, name: str, fault: str, seconds: float) -> None:
        """One of FAULTS to one process, which goes on, or comes back, after so many seconds.

        Fails if it does not end well on SIGTERM.
        """
        process = self.by_name[name]
        if fault == "stop":
            process.send(signal.SIGSTOP)
            time.sleep(seconds)
            process.send(signal.SIGCONT)
            return
        if fault == "kill":
            process.kill()
        else:
            code = process.stop(_DRAIN_SECONDS)
            assert code == 0, f"{name} ended with exit code {code} on SIGTERM"
        time.sleep(seconds)
        process.close()
        self.by_name[name] = ServiceProcess(process.command, *self._flags[name], port=process.address.port)

    def wait_until_ready(self) -> None:
        """All of them, and a chat works."""
        for process in self.by_name.values():
            process.wait_until_ready(seconds=_READY_SECONDS)
        self.render.wait_until_ready(TEXT_SERVICE, seconds=_READY_SECONDS)

    def close(self) -> None:
        """Kills all of them."""
        for process in self.by_name.values():
            process.close()

    def usage(self) -> str:
        """A line on what each process holds."""
        parts = []
        for name, process in self.by_name.items():
            with suppress(OSError):  # it has just ended
                folder = Path(f"/proc/{process.process.pid}")
                lines = dict(line.split(":\t", 1) for line in (folder / "status").read_text().splitlines())
                num_files = len(list((folder / "fd").iterdir()))
                memory = lines.get("VmRSS", "ended").strip()
                parts.append(f"{name} {memory} {num_files} files {lines['Threads']} threads")
        return ", ".join(parts)

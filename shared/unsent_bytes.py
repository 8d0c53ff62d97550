"""Whether the kernel has yet to send bytes of a connection; what it has not sent is lost with the process."""

from contextlib import suppress
from pathlib import Path

# proc(5), /proc/net/tcp: the columns local_address (address:port), st and tx_queue:rx_queue, in hexadecimal.
_LOCAL, _STATE, _QUEUES = 1, 3, 4
_ESTABLISHED = "01"


def has_unsent_bytes(port: int) -> bool:
    """For any open connection to this local port. False on systems without /proc."""
    return any(_has_unsent(line.split(), port) for line in _connections())


def _connections() -> list[str]:
    lines: list[str] = []
    for table in ("tcp", "tcp6"):
        with suppress(OSError):
            lines += Path(f"/proc/self/net/{table}").read_text().splitlines()[1:]
    return lines


def _has_unsent(columns: list[str], port: int) -> bool:
    local_port = int(columns[_LOCAL].rpartition(":")[2], 16)
    num_unsent = int(columns[_QUEUES].partition(":")[0], 16)
    return local_port == port and columns[_STATE] == _ESTABLISHED and num_unsent > 0

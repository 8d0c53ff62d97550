"""Does long work leave other threads of Python running? A measure that a busy machine does not change."""

import threading
from collections.abc import Callable
from time import thread_time


def bystander_share(work: Callable[[], object]) -> float:
    """The processor time that a busy thread gets while another one does the work, relative to the work's own.

    About 1 if the work leaves Python's global lock: the system treats both alike. Near 0 if it keeps it, for
    work much longer than the few milliseconds after which Python changes threads.
    """
    seconds: list[float] = []

    def timed() -> None:
        start = thread_time()
        work()
        seconds.append(thread_time() - start)

    worker = threading.Thread(target=timed)
    worker.start()
    start = thread_time()
    while worker.is_alive():
        pass
    return (thread_time() - start) / seconds[0]

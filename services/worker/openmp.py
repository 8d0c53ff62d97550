"""How torch's CPU threads wait for each other."""

import os


def bound_spinning() -> None:
    """Call before torch is imported: libgomp reads its settings when it is loaded.

    By default a thread that waits spins for milliseconds. With a core that anybody else uses too (another
    service, a neighbour), the spinning takes the time that the thread waited for needs: a decode of the
    embedded model takes 740 ms then, and 6 ms with spinning bounded (two threads, two busy cores).
    """
    os.environ.setdefault("GOMP_SPINCOUNT", "1000")

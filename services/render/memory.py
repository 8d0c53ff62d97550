"""Giving freed memory back to the system."""

import ctypes


def give_back_memory() -> None:
    """glibc keeps what is freed in small parts: hundreds of megabytes after a very long text."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)

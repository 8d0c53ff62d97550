"""A worker process on a device whose attention leaks the future. The device is a CPU that is not trusted."""

from services.cli.main import main
from services.worker import self_test, serve
from tests.unit.worker.backends.broken_backends import BROKEN, BrokenBackend

if __name__ == "__main__":
    self_test.TRUSTED_DEVICE = "the cpu of another machine"
    serve.ReferenceBackend = lambda: BrokenBackend(BROKEN["a causal leak"])  # type: ignore[assignment, attr-defined]
    main()

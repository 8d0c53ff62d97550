"""A worker process whose attention is subtly wrong."""

from services.cli.main import main
from services.worker import serve
from tests.unit.worker.backends.broken_backends import BrokenBackend, weaken

if __name__ == "__main__":
    serve.ReferenceBackend = lambda: BrokenBackend(weaken)  # type: ignore[assignment, attr-defined]
    main()

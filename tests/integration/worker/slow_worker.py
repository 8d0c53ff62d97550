"""A worker process whose passes take a minute."""

import time
from typing import Any

from services.cli.main import main
from services.worker.step.model_runner import ModelRunner


def _execute_slowly(runner: ModelRunner, step: Any) -> Any:
    time.sleep(60)


if __name__ == "__main__":
    ModelRunner.execute = _execute_slowly  # type: ignore[method-assign, assignment]
    main()

"""Before any test imports torch: its threads must not spin against the services that the tests start."""

from services.worker.tuning import tune_process

tune_process()

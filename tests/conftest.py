"""Before any test imports torch: its threads must not spin against the services that the tests start."""

from services.worker.openmp import bound_spinning

bound_spinning()

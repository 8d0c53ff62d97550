"""Before any test imports torch: its threads must not spin against the services that the tests start.

Property tests draw the same cases in each run, so that a change is judged by what it changed;
`pytest --hypothesis-profile=default` draws new ones.
"""

from hypothesis import settings

from services.worker.tuning import tune_process

tune_process()
settings.register_profile("repeatable", derandomize=True)
settings.load_profile("repeatable")

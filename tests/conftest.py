"""Before any test imports torch: its threads must not spin against the services that the tests start. Before
any uses gRPC: it must not ask a proxy for the services on this machine.

Property tests draw the same cases in each run, so that a change is judged by what it changed;
`pytest --hypothesis-profile=default` draws new ones.
"""

import os

from hypothesis import settings

from services.worker.tuning import tune_process

tune_process()
for name in [name for name in os.environ if name.lower().endswith("_proxy")]:
    del os.environ[name]
settings.register_profile("repeatable", derandomize=True)
settings.load_profile("repeatable")

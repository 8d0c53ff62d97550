"""Each service starts with nothing else running, undisturbed by what Kubernetes injects (G11).

The worker too: while it loads its model it answers already.
"""

import re
import urllib.request
from types import ModuleType

import pytest
from grpc_health.v1 import health_pb2
from prometheus_client.metrics import MetricWrapperBase

import services.render.metrics
import services.scheduler.metrics
import services.worker.metrics
from shared import metrics
from tests.support.kubernetes import injected
from tests.support.processes import READINESS, started

OWN_METRICS = {
    "render": services.render.metrics,
    "scheduler": services.scheduler.metrics,
    "worker": services.worker.metrics,
}
INJECTED = {
    name: value
    for service in ("render", "scheduler", "worker", "triptych-render", "triptych-scheduler", "triptych")
    for name, value in injected(service, 50051, "listen", "TCP").items()
}


def names_of(module: ModuleType) -> set[str]:
    return {
        family.name + ("_total" if family.type == "counter" else "")
        for metric in vars(module).values()
        if isinstance(metric, MetricWrapperBase)
        for family in metric.describe()
    }


@pytest.mark.parametrize("command", READINESS)
def test_a_service_answers_health_alone_and_exports_its_own_metrics_only(command: str) -> None:
    with started(command, environment=INJECTED) as service:
        (listening,) = (line for line in service.log if line["event"] == "listening")
        assert listening["address"] == str(service.address)
        assert service.health(READINESS[command]) in (
            health_pb2.HealthCheckResponse.SERVING,
            health_pb2.HealthCheckResponse.NOT_SERVING,
        )
        with urllib.request.urlopen(f"http://{service.metrics_address}/metrics") as response:
            exported = set(re.findall(r"^# TYPE (triptych_\w+) ", response.read().decode(), re.M))
        # Beside each counter and histogram prometheus_client exports the time of its creation.
        exported = {name for name in exported if not name.endswith("_created")}
        assert exported == names_of(metrics) | names_of(OWN_METRICS[command])
        assert service.stop() == 0

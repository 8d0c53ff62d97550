"""Each service starts with nothing else running, undisturbed by what Kubernetes injects (G11).

The worker too: while it loads its model it answers already.
"""

import urllib.request

import pytest
from grpc_health.v1 import health_pb2

from tests.support.processes import READINESS, started

INJECTED = {
    name: "tcp://10.0.0.1:50051"
    for service in ("RENDER", "SCHEDULER", "WORKER", "TRIPTYCH_RENDER", "TRIPTYCH_SCHEDULER", "TRIPTYCH")
    for name in (f"{service}_PORT", f"{service}_SERVICE_HOST", f"{service}_LISTEN", f"{service}_WORKER")
}


@pytest.mark.parametrize("command", READINESS)
def test_a_service_answers_health_and_metrics_alone(command: str) -> None:
    with started(command, environment=INJECTED) as service:
        (listening,) = (line for line in service.log if line["event"] == "listening")
        assert listening["address"] == str(service.address)
        assert service.health(READINESS[command]) in (
            health_pb2.HealthCheckResponse.SERVING,
            health_pb2.HealthCheckResponse.NOT_SERVING,
        )
        with urllib.request.urlopen(f"http://{service.metrics_address}/metrics") as response:
            assert b"triptych_server_requests_total" in response.read()
        assert service.stop() == 0

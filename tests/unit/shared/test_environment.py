"""Kubernetes injects variables for every Service of a namespace (G11); none of them is one of ours."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.cli.chat import ChatConfig
from services.cli.up import UpConfig
from services.render.config import RenderConfig
from services.scheduler.config import SchedulerConfig
from services.worker.config import WorkerConfig
from shared.config import ENV_PREFIX, TlsConfig, load_config

CONFIG_CLASSES: list[type[TlsConfig]] = [RenderConfig, SchedulerConfig, WorkerConfig, UpConfig, ChatConfig]
OUR_VARIABLES = {ENV_PREFIX + name for each in CONFIG_CLASSES for name in each.model_fields}

# A Service's and a port's name is a DNS label (RFC 1035, 1123). Those near our own names are tried most.
_WORDS = ["triptych", "render", "scheduler", "worker", "listen", "max-num-seqs", "model", "port", "7"]
service_names = st.one_of(
    st.from_regex(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?", fullmatch=True),
    st.lists(st.sampled_from(_WORDS), min_size=1, max_size=4).map("-".join),
)


def injected(service: str, port: int, port_name: str, protocol: str) -> dict[str, str]:
    """As kubernetes/pkg/kubelet/envvars makes them."""
    prefix = service.upper().replace("-", "_")
    url = f"{protocol.lower()}://10.0.0.1:{port}"
    each = f"{prefix}_PORT_{port}_{protocol}"
    return {
        f"{prefix}_SERVICE_HOST": "10.0.0.1",
        f"{prefix}_SERVICE_PORT": str(port),
        f"{prefix}_SERVICE_PORT_{port_name.upper().replace('-', '_')}": str(port),
        f"{prefix}_PORT": url,
        each: url,
        f"{each}_PROTO": protocol.lower(),
        f"{each}_PORT": str(port),
        f"{each}_ADDR": "10.0.0.1",
    }


@given(service_names, st.integers(1, 65535), service_names, st.sampled_from(["TCP", "UDP", "SCTP"]))
def test_no_service_name_makes_one_of_our_variables(
    service: str, port: int, port_name: str, protocol: str
) -> None:
    names = injected(service, port, port_name, protocol).keys()
    assert not names & OUR_VARIABLES
    # Nor will it when we add a variable: each of ours has a lower-case letter, none of theirs does.
    assert all(name == name.upper() for name in names)
    assert ENV_PREFIX.upper() != ENV_PREFIX


@pytest.mark.parametrize("config_class", CONFIG_CLASSES)
def test_upper_case_variables_have_no_effect(
    config_class: type[TlsConfig], monkeypatch: pytest.MonkeyPatch
) -> None:
    undisturbed = load_config(config_class, {})
    for service in ("render", "scheduler", "worker", "triptych-render", "triptych", "triptych-worker"):
        for name, value in injected(service, 50051, "grpc", "TCP").items():
            monkeypatch.setenv(name, value)
    for variable in OUR_VARIABLES:
        monkeypatch.setenv(variable.upper(), "tcp://10.0.0.1:50051")
    assert load_config(config_class, {}) == undisturbed

"""Kubernetes injects variables for every Service of a namespace (G11); none of them is one of ours."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.cli.chat import ChatConfig
from services.cli.up import UpConfig
from services.render.config import RenderConfig
from services.scheduler.config import SchedulerConfig
from services.worker.config import WorkerConfig
from shared.config import ENV_PREFIX, ConfigError, TlsConfig, check_environment, load_config
from tests.support.kubernetes import injected

CONFIG_CLASSES: list[type[TlsConfig]] = [RenderConfig, SchedulerConfig, WorkerConfig, UpConfig, ChatConfig]
KNOWN_FIELDS = {name for each in CONFIG_CLASSES for name in each.model_fields}
OUR_VARIABLES = {ENV_PREFIX + name for name in KNOWN_FIELDS}

# A Service's and a port's name is a DNS label (RFC 1035, 1123). Those near our own names are tried most.
_WORDS = ["triptych", "render", "scheduler", "worker", "listen", "max-num-seqs", "model", "port", "7"]
service_names = st.one_of(
    st.from_regex(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?", fullmatch=True),
    st.lists(st.sampled_from(_WORDS), min_size=1, max_size=4).map("-".join),
)


@given(service_names, st.integers(1, 65535), service_names, st.sampled_from(["TCP", "UDP", "SCTP"]))
def test_no_service_name_makes_one_of_our_variables_or_stops_a_start(
    service: str, port: int, port_name: str, protocol: str
) -> None:
    variables = injected(service, port, port_name, protocol)
    assert not variables.keys() & OUR_VARIABLES
    # Nor will it when we add a variable: each of ours has a lower-case letter, none of theirs does.
    assert all(name == name.upper() for name in variables)
    assert ENV_PREFIX.upper() != ENV_PREFIX
    check_environment(variables, KNOWN_FIELDS)


@pytest.mark.parametrize("config_class", CONFIG_CLASSES)
def test_what_kubernetes_sets_has_no_effect(
    config_class: type[TlsConfig], monkeypatch: pytest.MonkeyPatch
) -> None:
    undisturbed = load_config(config_class, {})
    for service in ("render", "scheduler", "worker", "triptych-render", "triptych", "triptych-worker"):
        for name, value in injected(service, 50051, "grpc", "TCP").items():
            monkeypatch.setenv(name, value)
    assert load_config(config_class, {}) == undisturbed


def test_every_known_variable_may_be_set_for_any_command() -> None:
    check_environment(dict.fromkeys(OUR_VARIABLES, "x"), KNOWN_FIELDS)


@pytest.mark.parametrize(
    ("name", "nearest"),
    [
        ("triptych_max_seqs", "triptych_max_num_seqs"),
        ("triptych_listens", "triptych_listen"),
        ("Triptych_listen", "triptych_listen"),
        ("triptych_LISTEN", "triptych_listen"),
        ("TRIPTYCH_listen", "triptych_listen"),
        ("TRIPTYCH_LISTEN", "triptych_listen"),
        ("TRIPTYCH_MAX_NUM_SEQS", "triptych_max_num_seqs"),
        ("TRIPTYCH_MAX_SEQS", "triptych_max_num_seqs"),
        ("TRIPTYCH_BASE_PORT", "triptych_base_port"),
        ("TRIPTYCH_WORKER", "triptych_worker"),
    ],
)
def test_a_variable_that_nobody_reads_is_refused_with_the_nearest_known_one(name: str, nearest: str) -> None:
    with pytest.raises(ConfigError) as caught:
        check_environment({name: "50051", "triptych_model": "x", "HOME": "y"}, KNOWN_FIELDS)
    assert str(caught.value) == f"unknown environment variable: {name} (did you mean {nearest}?)"


@pytest.mark.parametrize("field_name", sorted(KNOWN_FIELDS))
def test_each_variable_in_upper_case_is_refused(field_name: str) -> None:
    name = f"{ENV_PREFIX}{field_name}"
    with pytest.raises(ConfigError, match=rf"{name.upper()} \(did you mean {name}\?\)"):
        check_environment({name.upper(): "1"}, KNOWN_FIELDS)


def test_a_variable_that_is_like_none_of_ours_is_named_too() -> None:
    with pytest.raises(ConfigError, match="triptych_zzz"):
        check_environment({"triptych_zzz": "1"}, KNOWN_FIELDS)


def test_all_unknown_variables_are_named_on_one_line() -> None:
    with pytest.raises(ConfigError) as caught:
        check_environment({"triptych_wrokers": "2", "TRIPTYCH_MODEL": "x"}, KNOWN_FIELDS)
    assert str(caught.value) == (
        "unknown environment variable: "
        "TRIPTYCH_MODEL (did you mean triptych_model?), triptych_wrokers (did you mean triptych_workers?)"
    )


def test_other_upper_case_variables_are_somebody_else_s() -> None:
    check_environment(
        {"TRIPTYCH_HOME": "/opt", "TRIPTYCH_VERSION": "1", "TRIPTYCHON_MODEL": "x"}, KNOWN_FIELDS
    )

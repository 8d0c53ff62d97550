"""Flags, variables and defaults become one frozen object, or one line that says what to mend."""

from enum import Enum, EnumType
from pathlib import Path
from typing import Any, cast

import pytest
import trustme
from pydantic import ValidationError

from services.render.config import RenderConfig
from services.scheduler.config import SchedulerConfig
from services.worker.config import WorkerConfig
from shared.config import ConfigError, ServiceConfig, TlsConfig, load_config
from shared.wire import Address

SERVICES = [RenderConfig, SchedulerConfig, WorkerConfig]


def refusal(config_class: type[ServiceConfig], **flags: Any) -> str:
    with pytest.raises(ConfigError) as caught:
        load_config(config_class, flags)
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize("config_class", SERVICES)
def test_every_service_starts_without_flags_and_listens_on_loopback(
    config_class: type[ServiceConfig],
) -> None:
    config = load_config(config_class, {})
    assert config.listen.host == "127.0.0.1"
    assert config.metrics_address == config.listen.with_port(config.listen.port + 1000)


def test_the_services_defaults_find_each_other() -> None:
    scheduler, worker = load_config(SchedulerConfig, {}), load_config(WorkerConfig, {})
    assert scheduler.worker == (worker.listen,)
    assert load_config(RenderConfig, {}).listen not in (scheduler.listen, worker.listen)


def test_a_flag_wins_over_a_variable_and_a_variable_over_the_default(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("triptych_max_num_seqs", "7")
    assert load_config(SchedulerConfig, {}).max_num_seqs == 7
    assert load_config(SchedulerConfig, {"max_num_seqs": None}).max_num_seqs == 7
    assert load_config(SchedulerConfig, {"max_num_seqs": "9"}).max_num_seqs == 9


@pytest.mark.parametrize("config_class", SERVICES)
def test_every_field_reads_its_variable_as_it_reads_its_flag(
    config_class: type[ServiceConfig], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of all fields that can be set without another one."""
    values = {"listen": "[::1]:1", "metrics_listen": "h:2", "worker": "a:1,b:2", "scheduler": "c:3"}
    values |= {"kv_cache_memory": "1.5GiB"}
    for name, field in config_class.model_fields.items():
        if name in ("model", "num_blocks") or name.startswith("tls_"):
            continue
        value = values.get(name, "true" if field.annotation is bool else "1024")
        if isinstance(field.annotation, EnumType):
            value = str(list(cast("type[Enum]", field.annotation))[-1])
        from_flag = getattr(load_config(config_class, {name: value}), name)
        monkeypatch.setenv(f"triptych_{name}", value)
        assert getattr(load_config(config_class, {}), name) == from_flag, name
        monkeypatch.delenv(f"triptych_{name}")


def test_an_error_names_flag_variable_value_and_what_is_allowed() -> None:
    message = refusal(WorkerConfig, threads="0")
    assert message == "--threads (or triptych_threads) is '0': Input should be greater than or equal to 1"
    message = refusal(WorkerConfig, device="tpu")
    assert message.startswith("--device (or triptych_device) is 'tpu'")
    assert "'auto', 'cpu', 'mps' or 'cuda'" in message
    message = refusal(WorkerConfig, kv_cache_memory="1 parsec")
    expected = "could not interpret byte unit: parsec"
    assert message == f"--kv-cache-memory (or triptych_kv_cache_memory) is '1 parsec': {expected}"
    message = refusal(SchedulerConfig, worker="a:1,a:1")
    assert message == "--worker (or triptych_worker) is 'a:1,a:1': the same worker is named twice"


def test_a_bad_variable_is_refused_like_a_bad_flag(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("triptych_listen", "50051")
    assert refusal(RenderConfig).startswith("--listen (or triptych_listen) is '50051': not HOST:PORT")


def test_all_errors_are_told_at_once_and_on_one_line() -> None:
    message = refusal(WorkerConfig, listen="two\nlines", threads="many")
    assert "--listen" in message
    assert "; --threads" in message


def test_a_missing_value_is_asked_for() -> None:
    assert refusal(ServiceConfig) == "--listen (or triptych_listen) is needed"


def test_flags_that_exclude_or_need_each_other_are_named() -> None:
    assert "exclude each other" in refusal(WorkerConfig, kv_cache_memory="1GiB", num_blocks="8")
    assert "--tls-allowed-peers needs --tls-client-auth" in refusal(WorkerConfig, tls_allowed_peers="a")
    assert "--tls-client-auth needs" in refusal(RenderConfig, tls_client_auth=True)


def test_a_port_without_room_for_the_metrics_is_refused() -> None:
    assert "give --metrics-listen" in refusal(RenderConfig, listen="127.0.0.1:64600")
    config = load_config(RenderConfig, {"listen": "127.0.0.1:64600", "metrics_listen": "127.0.0.1:1"})
    assert config.metrics_address == Address("127.0.0.1", 1)


def test_port_zero_is_chosen_by_the_system_for_both() -> None:
    assert load_config(RenderConfig, {"listen": "127.0.0.1:0"}).metrics_address.port == 0


@pytest.mark.parametrize(
    ("text", "num_bytes"), [("1GiB", 2**30), ("1.5 MB", 1_500_000), ("4096", 4096), ("2kib", 2048)]
)
def test_memory_is_a_number_with_a_unit(text: str, num_bytes: int) -> None:
    assert load_config(WorkerConfig, {"kv_cache_memory": text}).cache_memory == num_bytes


def test_a_model_folder_must_be_there_with_a_readable_config(tmp_path: Path) -> None:
    missing = refusal(WorkerConfig, model=str(tmp_path / "none"))
    assert "--model (or triptych_model)" in missing
    assert "does not exist" in missing
    (tmp_path / "config.json").mkdir()
    assert "Is a directory" in refusal(WorkerConfig, model=str(tmp_path))
    (tmp_path / "config.json").rmdir()
    (tmp_path / "config.json").write_text("{")
    assert "is not JSON" in refusal(WorkerConfig, model=str(tmp_path))


def test_certificates_are_checked_before_anything_starts(tmp_path: Path) -> None:
    authority = trustme.CA()
    certificate = authority.issue_cert("127.0.0.1")
    cert, key, ca, other_key = (str(tmp_path / name) for name in ("cert", "key", "ca", "other_key"))
    certificate.cert_chain_pems[0].write_to_path(cert)
    certificate.private_key_pem.write_to_path(key)
    authority.cert_pem.write_to_path(ca)
    authority.issue_cert("127.0.0.1").private_key_pem.write_to_path(other_key)
    load_config(TlsConfig, {"tls_cert": cert, "tls_key": key, "tls_ca": ca})
    assert "go together" in refusal(RenderConfig, tls_cert=cert)
    assert "cannot read" in refusal(RenderConfig, tls_ca=str(tmp_path))
    assert "--tls-cert and --tls-key" in refusal(RenderConfig, tls_cert=cert, tls_key=other_key)
    assert "--tls-cert and --tls-key" in refusal(RenderConfig, tls_cert=ca, tls_key=key)
    assert "--tls-ca" in refusal(RenderConfig, tls_ca=key)


def test_allowed_peers_are_names_between_commas(tmp_path: Path) -> None:
    config = WorkerConfig.model_construct(tls_allowed_peers=" a, b,")
    assert config.allowed_peers == frozenset({"a", "b"})
    assert WorkerConfig.model_construct(tls_allowed_peers="").allowed_peers == frozenset()
    assert load_config(WorkerConfig, {}).allowed_peers is None


def test_a_configuration_does_not_change() -> None:
    config = load_config(WorkerConfig, {})
    with pytest.raises(ValidationError, match="frozen"):
        config.threads = 3  # type: ignore[misc]

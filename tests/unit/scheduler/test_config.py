"""SchedulerConfig: flags, variables, and one line for what is wrong."""

from typing import Any

import pytest

from services.scheduler.config import SchedulerConfig
from shared.config import ConfigError, load_config
from shared.wire import Address


def load(**flags: Any) -> SchedulerConfig:
    return load_config(SchedulerConfig, flags)


def test_without_flags_it_listens_on_loopback_and_looks_for_one_worker_there() -> None:
    config = load()
    assert config.listen == Address("127.0.0.1", 50052)
    assert config.worker == (Address("127.0.0.1", 50053),)


def test_workers_are_separated_by_commas_with_or_without_spaces() -> None:
    assert load(worker="a:1,b:2, [::1]:3").worker == (Address("a", 1), Address("b", 2), Address("::1", 3))


def test_a_variable_stands_for_its_flag_and_the_flag_wins(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("triptych_worker", "a:1,b:2")
    monkeypatch.setenv("triptych_max_num_seqs", "7")
    assert load().worker == (Address("a", 1), Address("b", 2))
    assert (load().max_num_seqs, load(max_num_seqs="9").max_num_seqs) == (7, 9)


def test_what_kubernetes_injects_has_no_effect(monkeypatch: pytest.MonkeyPatch) -> None:
    """G11."""
    expected = load()
    for name in ("SCHEDULER_PORT", "WORKER_PORT", "TRIPTYCH_WORKER_PORT", "TRIPTYCH_WORKER"):
        monkeypatch.setenv(name, "tcp://10.0.0.1:50051")
    assert load() == expected


@pytest.mark.parametrize(
    ("flag", "value", "words"),
    [
        ("worker", "", "HOST:PORT"),
        ("worker", "host", "HOST:PORT"),
        ("worker", "a:1,,b:2", "HOST:PORT"),
        ("worker", "a:1, a:1", "twice"),
        ("max_num_seqs", "0", "greater than or equal to 1"),
        ("max_num_batched_tokens", "many", "integer"),
        ("max_waiting", "-1", "greater than or equal to 0"),
        ("priority_aging", "0", "greater than 0"),
        ("output_buffer_bytes", "10", "greater than or equal to 1024"),
    ],
)
def test_a_wrong_value_is_named_with_its_flag_in_one_line(flag: str, value: str, words: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load(**{flag: value})
    message = str(caught.value)
    assert "--" + flag.replace("_", "-") in message
    assert words in message
    assert "\n" not in message

"""shared/README.md lists exactly the metrics that are declared, and their names keep the rules."""

import re
import socket
import urllib.request
from pathlib import Path

import pytest
from prometheus_client.metrics import MetricWrapperBase

from shared import metrics
from shared.config import ConfigError
from shared.wire import Address

README = Path(__file__).parents[3] / "shared" / "README.md"
UNITS = ("seconds", "bytes", "requests", "tokens", "sequences", "blocks", "preemptions", "ready")
DECLARED = [value for value in vars(metrics).values() if isinstance(value, MetricWrapperBase)]


def exposed_name(metric: MetricWrapperBase) -> str:
    """As /metrics has it: prometheus_client leaves out the _total of a counter."""
    return metric._name + ("_total" if metric._type == "counter" else "")


def declared_rows() -> set[tuple[str, str, str]]:
    return {(exposed_name(each), each._type, ", ".join(each._labelnames)) for each in DECLARED}


def test_the_readme_lists_exactly_the_declared_metrics() -> None:
    rows = re.findall(
        r"^\| `(triptych_\w+)` \| (\w+) \| ([^|]*) \| (\w+) \| (.+) \|$", README.read_text(), re.M
    )
    listed = [(name, kind, labels.replace("`", "").strip()) for name, kind, labels, _, _ in rows]
    assert len(set(listed)) == len(listed)
    assert set(listed) == declared_rows()


@pytest.mark.parametrize("metric", DECLARED, ids=exposed_name)
def test_a_name_says_whose_it_is_and_its_unit(metric: MetricWrapperBase) -> None:
    name = exposed_name(metric)
    assert name.startswith("triptych_")
    assert name.removesuffix("_total").endswith(UNITS)
    assert metric._documentation.endswith(".")


def test_labels_come_from_closed_sets() -> None:
    assert {label for metric in DECLARED for label in metric._labelnames} == {
        "method", "code", "stage", "worker", "state",
    }  # fmt: skip


def test_metrics_are_served_over_http_where_the_answer_says() -> None:
    address = metrics.serve_metrics(Address("127.0.0.1", 0))
    with urllib.request.urlopen(f"http://{address}/metrics") as response:
        text = response.read().decode()
    for name, kind, _ in declared_rows():
        assert f"# TYPE {name} {kind}" in text or f"# TYPE {name.removesuffix('_total')} {kind}" in text


def test_a_metrics_port_in_use_is_one_line() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = Address("127.0.0.1", taken.getsockname()[1])
        with pytest.raises(ConfigError, match=rf"^--metrics-listen: cannot listen on {address}: .* in use$"):
            metrics.serve_metrics(address)

"""shared/README.md lists exactly the metrics that are declared, and their names keep the rules."""

import re
import socket
import urllib.request
from bisect import bisect_left
from pathlib import Path
from types import ModuleType

import pytest
from prometheus_client import Histogram
from prometheus_client.metrics import MetricWrapperBase

import services.render.metrics
import services.scheduler.metrics
import services.worker.metrics
from shared import metrics
from shared.config import ConfigError
from shared.wire import Address

README = Path(__file__).parents[3] / "shared" / "README.md"
UNITS = (
    "seconds",
    "bytes",
    "requests",
    "tokens",
    "sequences",
    "blocks",
    "preemptions",
    "ready",
    "info",
    "outputs",
    "seqs",
)
# The section of the README, and the module whose metrics it lists.
MODULES = {
    "Every service": metrics,
    "render": services.render.metrics,
    "scheduler": services.scheduler.metrics,
    "worker": services.worker.metrics,
}


def declared_in(module: ModuleType) -> list[MetricWrapperBase]:
    return [value for value in vars(module).values() if isinstance(value, MetricWrapperBase)]


DECLARED = [metric for module in MODULES.values() for metric in declared_in(module)]


def exposed_name(metric: MetricWrapperBase) -> str:
    """As /metrics has it: prometheus_client leaves out the _total of a counter."""
    return metric._name + ("_total" if metric._type == "counter" else "")


def section(title: str) -> str:
    """The README's text under this heading."""
    _, _, rest = README.read_text().partition(f"\n### {title}\n")
    return re.split(r"^##", rest, maxsplit=1, flags=re.M)[0]


@pytest.mark.parametrize("title", MODULES)
def test_each_section_of_the_readme_lists_exactly_the_metrics_of_its_module(title: str) -> None:
    rows = re.findall(r"^\| `(triptych_\w+)` \| (\w+) \| ([^|]*) \| (\w+) \| (.+) \|$", section(title), re.M)
    listed = [(name, kind, labels.replace("`", "").strip()) for name, kind, labels, _, _ in rows]
    declared = [
        (exposed_name(each), each._type, ", ".join(each._labelnames)) for each in declared_in(MODULES[title])
    ]
    assert sorted(listed) == sorted(declared)


@pytest.mark.parametrize("metric", DECLARED, ids=exposed_name)
def test_a_name_says_whose_it_is_and_its_unit(metric: MetricWrapperBase) -> None:
    name = exposed_name(metric)
    assert name.startswith("triptych_")
    assert name.removesuffix("_total").endswith(UNITS)
    assert metric._documentation.endswith(".")


@pytest.mark.parametrize(
    "metric",
    [each for each in DECLARED if each._type == "histogram" and exposed_name(each).endswith("_seconds")],
)
def test_a_latency_has_buckets_from_a_millisecond_to_minutes_that_tell_a_factor_of_two(
    metric: Histogram,
) -> None:
    bounds = metric._upper_bounds[:-1]  # the last is infinity
    assert bounds[0] <= 0.001
    assert bounds[-1] >= 120
    factors_of_two = [(0.001 * 1.1**n, 0.002 * 1.1**n) for n in range(125)]  # to 150 and 300 s
    for faster, slower in ((0.3, 0.5), *factors_of_two):
        assert bisect_left(bounds, faster) < bisect_left(bounds, slower)


def test_labels_come_from_closed_sets() -> None:
    assert {label for metric in DECLARED for label in metric._labelnames} == {
        "method", "code", "stage", "worker", "state", "version", "python", "grpc", "grpc_service",
        "finish_reason", "outcome", "reason",
    }  # fmt: skip


def test_metrics_are_served_over_http_where_the_answer_says() -> None:
    address = metrics.serve_metrics(Address("127.0.0.1", 0))
    with urllib.request.urlopen(f"http://{address}/metrics") as response:
        text = response.read().decode()
    for name in map(exposed_name, DECLARED):
        assert f"# TYPE {name} " in text
    assert re.search(
        r'^triptych_build_info{grpc="[\d.]+",python="3[\d.]+",version="\d[^"]+"} 1.0$', text, re.M
    )


def test_a_metrics_port_in_use_is_one_line() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = Address("127.0.0.1", taken.getsockname()[1])
        with pytest.raises(ConfigError, match=rf"^--metrics-listen: cannot listen on {address}: .* in use$"):
            metrics.serve_metrics(address)

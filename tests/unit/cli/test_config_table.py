"""The table of settings in each service's README is the one that its configuration class gives."""

from pathlib import Path

import pytest

from services.cli.config_table import BEGIN, END, config_table, with_table
from services.cli.options import SERVICES
from services.scheduler.config import SchedulerConfig
from services.worker.config import WorkerConfig

ROOT = Path(__file__).parents[3]


@pytest.mark.parametrize(
    "name", [name for name in SERVICES if (ROOT / f"services/{name}/README.md").exists()]
)
def test_the_readme_s_table_is_fresh(name: str) -> None:
    """If not: `make docs`."""
    text = (ROOT / f"services/{name}/README.md").read_text()
    assert text == with_table(text, SERVICES[name])


@pytest.mark.parametrize("name", SERVICES)
def test_a_table_has_a_whole_row_for_each_setting(name: str) -> None:
    _head, _line, *rows = config_table(SERVICES[name]).splitlines()
    cells = [row.strip("| ").split(" | ") for row in rows]
    assert all(len(each) == 4 and each[3] for each in cells)
    assert {flag for flag, *_ in cells} == {
        "`--" + field.replace("_", "-") + "`" for field in SERVICES[name].model_fields
    }
    assert {variable for _, variable, *_ in cells} == {
        f"`triptych_{field}`" for field in SERVICES[name].model_fields
    }
    assert "(default:" not in "".join(rows)
    assert str(ROOT) not in "".join(rows)


def test_defaults_are_as_they_are_given_computed_or_off() -> None:
    rows = config_table(WorkerConfig)
    assert "| `--block-size` | `triptych_block_size` | 16 | Tokens per block. |" in rows
    assert "| `--kv-cache-memory` | `triptych_kv_cache_memory` | 1GiB |" in rows
    assert "| `--poison-cache` | `triptych_poison_cache` | off |" in rows
    assert "| `--record` | `triptych_record` |  |" in rows
    assert "| `--worker` | `triptych_worker` | 127.0.0.1:50053 |" in config_table(SchedulerConfig)


def test_what_is_between_the_comments_is_replaced_and_nothing_else() -> None:
    text = f"# worker\n\n{BEGIN}\nold\n{END}\n\nafter\n"
    renewed = with_table(text, WorkerConfig)
    assert renewed == f"# worker\n\n{BEGIN}\n{config_table(WorkerConfig)}{END}\n\nafter\n"
    assert with_table(renewed, WorkerConfig) == renewed


@pytest.mark.parametrize("text", ["", BEGIN, END, f"{END} {BEGIN}"])
def test_a_readme_without_a_place_for_the_table_is_an_error(text: str) -> None:
    with pytest.raises(ValueError, match="configuration"):
        with_table(text, WorkerConfig)

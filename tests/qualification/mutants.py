"""`make mutants`: applies each deliberate fault to a copy of the tree and lets the tests find it.

Prints a Markdown table for tests/bench/LOG.md. Exit code 1 if a mutant survives, or if the tests fail without
any: what they then catch means nothing.
"""

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter

from tests.qualification.mutations import MUTATIONS, Mutation

ROOT = Path(__file__).parents[2]
COPIED = ("services", "shared", "protos", "tests", "pyproject.toml")
# Those that catch most come first, since a mutant's run ends at its first failure.
TESTS = (
    "tests/qualification/test_checkpoints.py",
    "tests/qualification/test_fp8.py",
    "tests/unit/worker/test_sampler.py",
    "tests/unit/worker/test_model_runner.py",
    "tests/qualification/test_attention.py",
    "tests/qualification/test_histories.py",
    "tests/unit/worker",
)
# pytest's exit code when tests ran and some failed; any other is a mutation that proves nothing.
TESTS_FAILED = 1
LIMIT_SECONDS = 600.0


def main(faults: list[str]) -> int:
    """Runs all mutants, or those whose fault contains one of these words."""
    chosen = [m for m in MUTATIONS if not faults or any(word in m.fault for word in faults)]
    print("| mutant | file | caught by | s |\n| --- | --- | --- | --- |")
    survivors = 0
    with TemporaryDirectory(prefix="triptych-") as folder, ThreadPoolExecutor(_num_cores()) as pool:
        # One copy for all: the tree may change while they run.
        tree = copy_tree(ROOT, Path(folder) / "tree")
        unchanged = pool.submit(run_tests, tree, None)
        results = pool.map(partial(run_tests, tree), chosen)
        for mutation, (catcher, seconds) in zip(chosen, results, strict=True):
            survivors += catcher is None
            print(
                f"| {mutation.fault} | {mutation.file} | {catcher or '**nothing**'} | {seconds:.0f} |",
                flush=True,
            )
        failure, seconds = unchanged.result()
    print(f"\n{len(chosen) - survivors} of {len(chosen)} caught; ", end="")
    print(f"the tree as it is: {failure or 'passes'}, {seconds:.0f} s")
    return 1 if survivors or failure else 0


def run_tests(tree: Path, mutation: Mutation | None) -> tuple[str | None, float]:
    """The first test that fails on a mutated copy of the tree, None if all pass; and the seconds."""
    started = perf_counter()
    with TemporaryDirectory(prefix="triptych-mutant-") as folder:
        copy = copy_tree(tree, Path(folder) / "tree")
        if mutation is not None:
            path = copy / mutation.path
            path.write_text(path.read_text().replace(mutation.old, mutation.new))
        try:
            result = run_pytest(copy, TESTS)
        except subprocess.TimeoutExpired:
            return f"no test, but they end no more within {LIMIT_SECONDS:.0f} s", perf_counter() - started
    if result.returncode == 0:
        return None, perf_counter() - started
    failed = re.search(r"^(?:FAILED|ERROR) \S*/(\S+?::[^\s\[]+)", result.stdout, re.MULTILINE)
    if result.returncode != TESTS_FAILED or failed is None:
        raise RuntimeError(
            f"{mutation}: the tests did not run:\n{result.stdout[-3000:]}{result.stderr[-3000:]}"
        )
    return f"`{failed[1]}`", perf_counter() - started


def copy_tree(source: Path, target: Path) -> Path:
    """What the tests need, without caches; -> target."""
    target.mkdir()
    ignored = shutil.ignore_patterns("__pycache__", ".*_cache")
    for name in COPIED:
        if (source / name).is_dir():
            shutil.copytree(source / name, target / name, ignore=ignored)
        else:
            shutil.copy(source / name, target / name)
    return target


def run_pytest(folder: Path, tests: Iterable[str]) -> "subprocess.CompletedProcess[str]":
    """In the copy, up to the first failure, and without worker processes: those add nothing but time."""
    arguments = [
        "-x",
        "-q",
        "-p",
        "no:cacheprovider",
        "--durations=0",
        "--basetemp",
        str(folder.parent / "temporary"),
    ]
    return subprocess.run(
        [sys.executable, "-m", "pytest", *arguments, "-k", "not gRPC", *tests],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=LIMIT_SECONDS,
        check=False,
    )


def _num_cores() -> int:
    return len(os.sched_getaffinity(0))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

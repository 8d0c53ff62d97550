"""What is in the wheels, built from a checkout and from a source distribution, and that they import."""

import shutil
import subprocess
import sys
import sysconfig
import tomllib
import zipfile
from pathlib import Path

import google.protobuf
import grpc
import pytest
import typing_extensions

ROOT = Path(__file__).parents[3]
SITE_PACKAGES = sysconfig.get_path("purelib")
GENERATED = {f"triptych/v1/{name}_pb2" for name in ("render", "scheduler", "types", "worker")}


def source_copy(project: str, folder: Path) -> Path:
    """The project as in a fresh checkout: nothing built, nothing generated."""
    ignored = shutil.ignore_patterns(
        "*_pb2*", ".generated", "__pycache__", "build", "*.egg-info", ".*_cache", ".venv", ".git", "tests"
    )
    return Path(shutil.copytree(ROOT / project, folder / "source", ignore=ignored))


def build(project: str, folder: Path, source: str) -> Path:
    """The wheel, built with the tools of this environment: no index is asked."""
    where = source_copy(project, folder)
    if source == "sdist":
        script = f"import setuptools.build_meta as b; print(b.build_sdist({str(folder)!r}))"
        subprocess.run([sys.executable, "-c", script], cwd=where, check=True, capture_output=True)
        (where,) = folder.glob("*.tar.gz")
    command = [sys.executable, "-m", "pip", "wheel", "--no-build-isolation", "--no-deps", "--no-index"]
    subprocess.run([*command, "-w", folder, where], check=True, capture_output=True)
    (wheel,) = folder.glob("*.whl")
    return wheel


def run_without_site_packages(script: str, *paths: Path | str) -> str:
    """With these folders and the standard library on the path: no .pth file leads back to the checkout."""
    before = f"import sys; sys.path[:0] = {[str(path) for path in paths]}\n"
    command = [sys.executable, "-I", "-S", "-c", before + script]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def names_in(wheel: Path) -> set[str]:
    return set(zipfile.ZipFile(wheel).namelist())


def generated_files() -> set[str]:
    return {
        f"{name}{suffix}.{kind}" for name in GENERATED for suffix in ("", "_grpc") for kind in ("py", "pyi")
    }


@pytest.mark.parametrize("source", ["checkout", "sdist"])
def test_the_protos_alone_are_a_typed_wheel_that_needs_grpcio_and_protobuf_only(
    tmp_path: Path, source: str
) -> None:
    wheel = build("protos", tmp_path, source)
    names = {name for name in names_in(wheel) if ".dist-info/" not in name}
    assert generated_files() | {"triptych/v1/py.typed", "triptych/v1/render.proto"} <= names
    assert {name.split("/")[0] for name in names} == {"triptych"}
    # An environment of the wheel, its two requirements and theirs, and nothing else.
    installed = tmp_path / "installed"
    zipfile.ZipFile(wheel).extractall(installed)
    (installed / "grpc").symlink_to(Path(grpc.__file__).parent)
    (installed / "google").mkdir()
    for name in ("protobuf", "_upb"):
        (installed / "google" / name).symlink_to(Path(google.protobuf.__file__).parents[1] / name)
    (installed / "typing_extensions.py").symlink_to(typing_extensions.__file__)
    script = """
import grpc
from triptych.v1 import render_pb2, render_pb2_grpc, scheduler_pb2_grpc, types_pb2_grpc, worker_pb2_grpc
with grpc.insecure_channel("127.0.0.1:1") as channel:
    render_pb2_grpc.TextServiceStub(channel).Chat
print(render_pb2.__file__)
"""
    assert run_without_site_packages(script, installed).strip().startswith(str(installed))


@pytest.mark.parametrize("source", ["checkout", pytest.param("sdist", marks=pytest.mark.slow)])
def test_the_project_s_wheel_has_every_room_and_not_what_trains_the_embedded_model(
    tmp_path: Path, source: str
) -> None:
    wheel = build(".", tmp_path, source)
    names = names_in(wheel)
    sources = {
        path.relative_to(ROOT).as_posix()
        for folder in ("services", "shared")
        for path in (ROOT / folder).rglob("*.py")
    }
    training = {name for name in sources if name.startswith("shared/demo_model/training/")}
    assert training
    assert {name for name in names if name.endswith(".py") and not name.startswith("triptych/")} == (
        sources - training
    )
    assert not {name for name in names if "training" in name}
    assert generated_files() <= names
    model = {f"shared/demo_model/{name}" for name in ("model.safetensors", "tokenizer.json", "config.json")}
    assert model <= names
    installed = tmp_path / "installed"
    zipfile.ZipFile(wheel).extractall(installed)
    script = "import services.cli.main as m; print(m.__file__, m.app.info.help)"
    assert run_without_site_packages(script, installed, SITE_PACKAGES).startswith(str(installed))


def test_both_distributions_have_one_version_and_the_same_build_tools() -> None:
    ours, protos = (
        tomllib.loads((ROOT / folder / "pyproject.toml").read_text()) for folder in (".", "protos")
    )
    assert protos["project"]["version"] == ours["project"]["version"]
    assert protos["build-system"] == ours["build-system"]
    assert set(protos["project"]["dependencies"]) <= set(ours["project"]["dependencies"])

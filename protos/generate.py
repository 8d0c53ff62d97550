"""Compiles protos/triptych/v1/*.proto into Python beside them, importable as `triptych.v1`.

Run by `make protos`, and by setuptools when a wheel or an editable install is built (`BuildPy`).
"""

import shutil
import sys
import sysconfig
from pathlib import Path

from setuptools.command.build_py import build_py
from setuptools.command.sdist import sdist

PROTOS = Path(__file__).resolve().parent


def generate() -> None:
    """Writes *_pb2.py, *_pb2_grpc.py and their .pyi files. Raises SystemExit with protoc's message."""
    from grpc_tools import protoc  # only needed, and only installed, where the code is generated

    scripts = sysconfig.get_path("scripts")
    names = ("protoc-gen-mypy", "protoc-gen-mypy_grpc")
    plugins = {name: shutil.which(name, path=scripts) or shutil.which(name) for name in names}
    missing = [name for name, path in plugins.items() if path is None]
    if missing:
        raise SystemExit(f"protos/generate.py: {', '.join(missing)} not found: install mypy-protobuf")
    well_known = Path(protoc.__file__).parent / "_proto"
    sources = sorted(str(path) for path in (PROTOS / "triptych").rglob("*.proto"))
    arguments = [
        "protoc",
        f"--proto_path={PROTOS}",
        f"--proto_path={well_known}",
        *(f"--plugin={name}={path}" for name, path in plugins.items()),
        f"--python_out={PROTOS}",
        f"--grpc_python_out={PROTOS}",
        f"--mypy_out=quiet:{PROTOS}",
        f"--mypy_grpc_out=quiet:{PROTOS}",
        *sources,
    ]
    if protoc.main(arguments) != 0:
        raise SystemExit("protos/generate.py: protoc failed")


class BuildPy(build_py):
    """setuptools' build_py, after generating the code that it packages."""

    def run(self) -> None:
        generate()
        super().run()


class SDist(sdist):
    """setuptools' sdist, with this file, which building from the source distribution needs."""

    def make_distribution(self) -> None:
        self.filelist.append(str(Path(__file__).relative_to(Path.cwd())))
        super().make_distribution()


if __name__ == "__main__":
    generate()
    folder = PROTOS / "triptych" / "v1"
    print(f"generated {len(list(folder.glob('*_pb2*.py')))} files in {folder}", file=sys.stderr)

"""Which file holds which tensor of a checkpoint folder."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open

from shared.model_files import CheckpointError, read_json

_SINGLE = "model.safetensors"
_INDEX = "model.safetensors.index.json"


def files_of(folder: Path) -> dict[Path, list[str]]:
    """The tensors to read from each file, in order of name.

    With an index, only what it says counts: a stray file, or a second copy of a tensor in another shard, is
    not read. CheckpointError if there is neither an index nor a single file, or one of them is broken.
    """
    index_path = folder / _INDEX
    if index_path.exists():
        return _from_index(folder, index_path)
    path = folder / _SINGLE
    if not path.exists():
        raise CheckpointError(f"{folder} holds neither {_SINGLE} nor {_INDEX}")
    return {path: sorted(_names_in(path))}


def _from_index(folder: Path, index_path: Path) -> dict[Path, list[str]]:
    weight_map = read_json(index_path).get("weight_map")
    if not isinstance(weight_map, dict) or not all(isinstance(file, str) for file in weight_map.values()):
        raise CheckpointError(f"{index_path}: weight_map is not an object of file names")
    names_by_file: dict[str, list[str]] = {}
    for name, file in sorted(weight_map.items()):
        names_by_file.setdefault(file, []).append(name)
    for file, names in sorted(names_by_file.items()):
        if Path(file).name != file:
            raise CheckpointError(
                f"{index_path}: weight_map names {file}, which is not a file in this folder"
            )
        if not (folder / file).exists():
            raise CheckpointError(f"{index_path} names {file}, which does not exist")
        absent = sorted(set(names) - _names_in(folder / file))
        if absent:
            raise CheckpointError(f"{folder / file} lacks {absent[0]}, which the index says it holds")
    return {folder / file: names for file, names in sorted(names_by_file.items())}


def _names_in(path: Path) -> set[str]:
    with open_tensors(path) as file:
        return set(file.keys())


@contextmanager
def open_tensors(path: Path) -> Iterator[Any]:
    """One safetensors file. CheckpointError if it cannot be read."""
    try:
        with safe_open(path, framework="pt") as file:
            yield file
    except (OSError, SafetensorError) as error:
        raise CheckpointError(f"{path} cannot be read: {error}") from None

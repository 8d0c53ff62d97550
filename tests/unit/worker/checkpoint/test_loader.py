"""Loading: strict by name and shape, only the file that the index names, one clear sentence for a fault."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from services.worker.backends.reference.backend import ReferenceBackend
from services.worker.checkpoint.loader import LoadedModel, load_checkpoint
from services.worker.model.configuration import CheckpointError
from tests.support.fp8_checkpoints import to_fp8, to_twin
from tests.unit.worker.step.steps import all_logits

INDEX = "model.safetensors.index.json"
NORM = "model.norm.weight"


def load(folder: Path, *, dtype: torch.dtype = torch.float32) -> LoadedModel:
    return load_checkpoint(folder, dtype=dtype, device=torch.device("cpu"), backend=ReferenceBackend())


@pytest.fixture
def single(checkpoint_folder: Callable[[str], Path], tmp_path: Path) -> Path:
    """A copy of a checkpoint in one file."""
    return Path(shutil.copytree(checkpoint_folder("v2_plain"), tmp_path / "single"))


@pytest.fixture
def sharded(checkpoint_folder: Callable[[str], Path], tmp_path: Path) -> Path:
    """A copy of a checkpoint in many files."""
    return Path(shutil.copytree(checkpoint_folder("v3_grouped_yarn"), tmp_path / "sharded"))


def change_tensors(folder: Path, change: Callable[[dict[str, torch.Tensor]], object]) -> None:
    tensors = load_file(folder / "model.safetensors")
    change(tensors)
    save_file(tensors, folder / "model.safetensors")


def change_json(path: Path, change: Callable[[dict], object]) -> None:
    content = json.loads(path.read_text())
    change(content)
    path.write_text(json.dumps(content))


def refusal(folder: Path) -> str:
    with pytest.raises(CheckpointError) as caught:
        load(folder)
    message = str(caught.value)
    assert "\n" not in message
    return message


def test_every_weight_is_the_checkpoints(single: Path) -> None:
    tensors, loaded = load_file(single / "model.safetensors"), load(single).model.weights()
    assert loaded.keys() == tensors.keys()
    assert all(torch.equal(loaded[name], tensor) for name, tensor in tensors.items())


def test_weights_are_converted_but_for_the_router(sharded: Path) -> None:
    for dtype in (torch.float32, torch.bfloat16):
        weights = load(sharded, dtype=dtype).model.weights()
        for name, tensor in weights.items():
            is_router = ".mlp.gate." in name
            assert tensor.dtype == (torch.float32 if is_router else dtype), name


def test_progress_counts_tensors(single: Path) -> None:
    heard: list[tuple[int, int]] = []
    backend = ReferenceBackend()
    load_checkpoint(
        single,
        dtype=torch.float32,
        device=torch.device("cpu"),
        backend=backend,
        progress=lambda done, total: heard.append((done, total)),
    )
    total = len(load_file(single / "model.safetensors"))
    assert heard == [(i + 1, total) for i in range(total)]


def test_computed_buffers_and_a_tied_output_layer_are_ignored(single: Path) -> None:
    def add(tensors: dict[str, torch.Tensor]) -> None:
        tensors["model.layers.0.self_attn.rotary_emb.inv_freq"] = torch.ones(8)
        tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"].clone()

    change_json(single / "config.json", lambda config: config.update(tie_word_embeddings=True))
    change_tensors(single, add)
    assert "lm_head.weight" not in load(single).model.weights()


def test_a_missing_tensor_is_named(single: Path) -> None:
    change_tensors(single, lambda tensors: tensors.pop(NORM))
    assert refusal(single).endswith(f"lacks tensors: {NORM}")


def test_an_unexpected_tensor_is_named(single: Path) -> None:
    name = "model.layers.1.self_attn.q_a_proj.weight"
    change_tensors(single, lambda tensors: tensors.update({name: torch.ones(2, 2)}))
    assert refusal(single).endswith(f"has unexpected tensors: {name}")


def test_layers_below_the_last_are_not_taken_for_extra_ones(single: Path) -> None:
    change_json(single / "config.json", lambda config: config.update(num_hidden_layers=4))
    message = refusal(single)
    assert "lacks tensors: model.layers.3.input_layernorm.weight" in message
    assert "more" in message


def test_a_misshapen_tensor_is_named_with_both_shapes(single: Path) -> None:
    change_tensors(single, lambda tensors: tensors.update({NORM: torch.ones(71)}))
    assert refusal(single) == f"tensor {NORM} has shape [71]; config.json asks for [72]"


def test_a_tensor_of_another_type_is_named(single: Path) -> None:
    change_tensors(single, lambda tensors: tensors.update({NORM: torch.ones(72, dtype=torch.int8)}))
    assert refusal(single) == f"tensor {NORM} has type int8; allowed: bfloat16, float16, float32"


def test_a_missing_shard_is_named(sharded: Path) -> None:
    shard = sorted(sharded.glob("*.safetensors"))[2]
    shard.unlink()
    assert refusal(sharded).endswith(f"names {shard.name}, which does not exist")


def test_a_tensor_that_its_shard_lacks_is_named(sharded: Path) -> None:
    def move(index: dict) -> None:
        files = sorted(set(index["weight_map"].values()))
        index["weight_map"][NORM] = next(file for file in files if file != index["weight_map"][NORM])

    change_json(sharded / INDEX, move)
    assert f"lacks {NORM}" in refusal(sharded)


def test_stray_files_and_second_copies_are_not_read(sharded: Path) -> None:
    expected = load(sharded)
    save_file({"stray": torch.ones(1), NORM: torch.zeros(72)}, sharded / "model.safetensors")
    files = sorted(set(json.loads((sharded / INDEX).read_text())["weight_map"].values()))
    first = load_file(sharded / files[0])
    copy = (
        {NORM: torch.zeros(72)} if NORM not in first else {"model.embed_tokens.weight": torch.zeros(199, 72)}
    )
    save_file({**first, **copy}, sharded / files[0])
    loaded = load(sharded)
    assert loaded.model_fingerprint == expected.model_fingerprint
    assert torch.equal(loaded.model.weights()[NORM], expected.model.weights()[NORM])


@pytest.mark.parametrize("name", ["../model.safetensors", "a/b.safetensors"])
def test_an_index_cannot_point_outside_the_folder(sharded: Path, name: str) -> None:
    change_json(sharded / INDEX, lambda index: index["weight_map"].update({NORM: name}))
    assert f"names {name}, which is not a file in this folder" in refusal(sharded)


def test_broken_files_are_named(single: Path, sharded: Path, tmp_path: Path) -> None:
    (single / "model.safetensors").write_bytes(b"\x10\x00\x00\x00\x00\x00\x00\x00not a header")
    assert "model.safetensors cannot be read" in refusal(single)
    (sharded / INDEX).write_text("{")
    assert f"{INDEX} is not JSON" in refusal(sharded)
    (sharded / INDEX).write_text('{"weight_map": [1]}')
    assert "weight_map is not an object" in refusal(sharded)
    (sharded / INDEX).unlink()
    assert "holds neither model.safetensors nor" in refusal(sharded)
    assert refusal(tmp_path / "nowhere").endswith("does not exist")
    (single / "tokenizer.json").write_text("no")
    assert "tokenizer.json is not JSON" in refusal(single)


def test_the_fingerprint_is_the_same_for_the_same_model_however_it_is_written(
    single: Path, sharded: Path, checkpoint_folder: Callable[[str], Path]
) -> None:
    assert load(single).model_fingerprint == load(checkpoint_folder("v2_plain")).model_fingerprint
    before = load(sharded).model_fingerprint
    index = json.loads((sharded / INDEX).read_text())
    tensors = {name: load_file(sharded / file)[name] for name, file in index["weight_map"].items()}
    (sharded / INDEX).unlink()
    save_file(tensors, sharded / "model.safetensors")
    change_json(sharded / "config.json", lambda config: config.update(use_cache=False))
    assert load(sharded).model_fingerprint == before


def test_the_fingerprint_tells_models_and_types_apart(single: Path) -> None:
    seen = {load(single).model_fingerprint, load(single, dtype=torch.bfloat16).model_fingerprint}
    change_json(single / "config.json", lambda config: config.update(rms_norm_eps=1e-4))
    seen.add(load(single).model_fingerprint)
    change_tensors(single, lambda tensors: tensors[NORM].add_(1e-3))
    seen.add(load(single).model_fingerprint)
    assert len(seen) == 4


def test_fp8_weights_are_multiplied_by_the_scale_of_their_block(single: Path) -> None:
    # Blocks that end neither at a head's edge nor at the tensor's: kv_a_proj_with_mqa has 64 rows.
    meant = to_fp8(single, (40, 28))
    loaded = load(single)
    for name, weight in loaded.model.weights().items():
        assert torch.equal(weight, meant[name]), name
    to_twin(single, meant, torch.float32)
    twin = load(single)
    assert torch.equal(all_logits(loaded, [5, 6, 7], 3), all_logits(twin, [5, 6, 7], 3))
    assert loaded.model_fingerprint != twin.model_fingerprint


def test_fp8_faults_are_named(single: Path) -> None:
    to_fp8(single, (40, 28))
    name = "model.layers.1.self_attn.kv_b_proj.weight"
    change_tensors(single, lambda tensors: tensors.update({f"{name}_scale_inv": torch.ones(2, 1)}))
    assert refusal(single) == f"tensor {name}_scale_inv has shape [2, 1]; allowed: [2, 2]"
    change_tensors(single, lambda tensors: tensors.pop(f"{name}_scale_inv"))
    assert refusal(single) == f"tensor {name} is in FP8, but {name}_scale_inv is missing"
    change_tensors(single, lambda tensors: tensors.update({"lm_head.weight_scale_inv": torch.ones(1, 1)}))
    assert "tensor lm_head.weight has a scale but is in torch.float32" in refusal(single)
    change_json(single / "config.json", lambda config: config.pop("quantization_config"))
    assert "has unexpected tensors" in refusal(single)

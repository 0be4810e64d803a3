"""Weights that lie beside a config are read from headers alone; broken files are refused with what to do."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from kvblocks.errors import UsageError
from kvblocks.sizing.flags import EngineFlags
from kvblocks.sizing.model_config import ModelConfig
from kvblocks.sizing.weights import weights_per_rank
from kvblocks.sizing.weights.files import find_tensors, read_header

CONFIG = {
    "model_type": "llama",
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 128,
    "vocab_size": 256,
    "torch_dtype": "bfloat16",
    "tie_word_embeddings": False,
}
SHAPES = {
    "model.embed_tokens.weight": [256, 64],
    "lm_head.weight": [256, 64],
    "model.norm.weight": [64],
    **{f"model.layers.{n}.self_attn.q_proj.weight": [64, 64] for n in (0, 1)},
    **{f"model.layers.{n}.mlp.up_proj.weight": [128, 64] for n in (0, 1)},
    **{f"model.layers.{n}.input_layernorm.weight": [64] for n in (0, 1)},
}


def write(folder: Path, shapes: dict[str, list[int]], name: str = "model.safetensors", dtype: str = "BF16") -> Path:
    """A safetensors file whose tensors are holes: the bytes are there but were never written."""
    size = {"BF16": 2, "F32": 4, "F8_E4M3": 1}[dtype]
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    end = 0
    for tensor, shape in shapes.items():
        start, end = end, end + size * (shape[0] * (shape[1] if len(shape) > 1 else 1))
        header[tensor] = {"dtype": dtype, "shape": shape, "data_offsets": [start, end]}
    text = json.dumps(header).encode()
    file = folder / name
    with file.open("wb") as stream:
        stream.write(len(text).to_bytes(8, "little") + text)
        stream.truncate(8 + len(text) + end)
    return file


def model(folder: Path, **changes: Any) -> ModelConfig:
    (folder / "config.json").write_text(json.dumps({**CONFIG, **changes}))
    return ModelConfig.load(folder)


def elements(shapes: dict[str, list[int]]) -> int:
    return sum(shape[0] * (shape[1] if len(shape) > 1 else 1) for shape in shapes.values())


def test_the_headers_give_the_bytes_exactly(tmp_path: Path) -> None:
    write(tmp_path, SHAPES)
    weights = weights_per_rank(model(tmp_path))
    assert weights.source == "files"
    assert weights.low == weights.best == 2 * elements(SHAPES)


def test_a_rank_holds_its_part_of_matrices_and_all_of_norms(tmp_path: Path) -> None:
    write(tmp_path, SHAPES)
    weights = weights_per_rank(model(tmp_path), EngineFlags(tensor_parallel_size=2))
    norms = 3 * 64
    assert weights.best == elements(SHAPES) - norms + 2 * norms


def test_stages_share_out_the_layers_of_the_files(tmp_path: Path) -> None:
    write(tmp_path, SHAPES)
    config, flags = model(tmp_path), EngineFlags(pipeline_parallel_size=2)
    first, last = (weights_per_rank(config, flags, stage).best for stage in (0, 1))
    assert first + last == 2 * elements(SHAPES)


def test_what_the_engine_does_not_load_is_left_out(tmp_path: Path) -> None:
    extra = {
        "mtp.layers.0.up_proj.weight": [64, 64],
        "model.layers.2.mlp.up_proj.weight": [64, 64],
        "model.visual.blocks.0.attn.qkv.weight": [64, 64],
    }
    write(tmp_path, SHAPES | extra)
    config = model(tmp_path)
    plain = weights_per_rank(config, EngineFlags(language_model_only=True)).best
    assert plain == 2 * elements(SHAPES)
    assert weights_per_rank(config).best == plain + 2 * 64 * 64
    draft = EngineFlags(language_model_only=True, speculative_config={"method": "mtp", "num_speculative_tokens": 1})
    assert weights_per_rank(config, draft).groups["draft"] == 2 * 2 * 64 * 64


def test_a_stored_head_that_is_tied_is_not_loaded_twice(tmp_path: Path) -> None:
    write(tmp_path, SHAPES)
    weights = weights_per_rank(model(tmp_path, tie_word_embeddings=True))
    assert weights.best == 2 * (elements(SHAPES) - 256 * 64)


def test_32_bit_files_are_cast_to_the_models_dtype(tmp_path: Path) -> None:
    write(tmp_path, SHAPES, dtype="F32")
    weights = weights_per_rank(model(tmp_path, torch_dtype="float32"))
    assert weights.best == 2 * elements(SHAPES) + 2 * 3 * 64  # vectors keep their 32 bits


def test_several_files_are_read_by_their_index(tmp_path: Path) -> None:
    names = list(SHAPES)
    halves = ({n: SHAPES[n] for n in names[:4]}, {n: SHAPES[n] for n in names[4:]})
    weight_map: dict[str, str] = {}
    for number, half in enumerate(halves, 1):
        write(tmp_path, half, f"model-0000{number}-of-00002.safetensors")
        weight_map |= dict.fromkeys(half, f"model-0000{number}-of-00002.safetensors")
    index = {"metadata": {"total_size": 2 * elements(SHAPES)}, "weight_map": weight_map}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    assert weights_per_rank(model(tmp_path)).best == 2 * elements(SHAPES)
    (tmp_path / "model-00002-of-00002.safetensors").unlink()
    with pytest.raises(UsageError, match=r"1 of 2 weight files of the index are missing .*00002-of-00002"):
        weights_per_rank(model(tmp_path))


def test_an_index_alone_gives_the_total(tmp_path: Path) -> None:
    config = model(tmp_path)
    counted = weights_per_rank(config)
    index = {"metadata": {"total_size": counted.best}, "weight_map": {"a": "model-00001-of-00001.safetensors"}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    weights = weights_per_rank(config)
    assert weights.source == "index"
    assert weights.best == pytest.approx(counted.best, rel=0.01)
    index["metadata"] = {"total_size": 3 * counted.best}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    assert any("3.0" in note for note in weights_per_rank(config).not_modelled)


def test_without_files_the_config_is_counted(tmp_path: Path) -> None:
    assert weights_per_rank(model(tmp_path)).source == "config"
    assert find_tensors(tmp_path) is None


@pytest.mark.parametrize("kept", [0, 4, 8, 100])
def test_a_file_cut_off_in_its_header_is_refused(tmp_path: Path, kept: int) -> None:
    file = write(tmp_path, SHAPES)
    file.write_bytes(file.read_bytes()[:kept])
    with pytest.raises(UsageError, match="is not a whole safetensors file; download it again"):
        weights_per_rank(model(tmp_path))


def test_a_file_cut_off_in_its_tensors_is_refused(tmp_path: Path) -> None:
    file = write(tmp_path, SHAPES)
    with file.open("r+b") as stream:
        stream.truncate(file.stat().st_size - 1)
    with pytest.raises(UsageError, match="is cut off"):
        read_header(file)


def test_files_that_are_something_else_are_refused(tmp_path: Path) -> None:
    file = tmp_path / "model.safetensors"
    file.write_text("version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n")
    with pytest.raises(UsageError, match="is a pointer to a large file"):
        read_header(file)
    file.write_bytes((16).to_bytes(8, "little") + b"this is no json!" + b"0" * 64)
    with pytest.raises(UsageError, match="header that is not JSON"):
        read_header(file)
    text = json.dumps({"a": {"dtype": "Q9", "shape": [2], "data_offsets": [0, 4]}}).encode()
    file.write_bytes(len(text).to_bytes(8, "little") + text + b"0" * 64)
    with pytest.raises(UsageError, match="tensor 'a' has no shape or dtype"):
        read_header(file)


@pytest.mark.parametrize("text", ["{", "[]", '{"metadata": {"total_size": "big"}}'])
def test_an_index_that_is_none_is_refused(tmp_path: Path, text: str) -> None:
    config = model(tmp_path)
    (tmp_path / "model.safetensors.index.json").write_text(text)
    with pytest.raises(UsageError, match=r"index\.json"):
        weights_per_rank(config)

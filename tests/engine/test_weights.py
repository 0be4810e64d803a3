"""Weights from files are the weights that were written, and a file that is not whole is told of."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from numpy.typing import NDArray

from kvblocks.engine import Engine, EngineSettings, SamplingParams, load_model
from kvblocks.engine.model.shape import read_shape
from kvblocks.engine.weights import GGUFFile, RandomSource, SafetensorsFolder, build_weights, parameter_shapes
from kvblocks.errors import UsageError
from kvblocks.sizing import ModelConfig
from tests.engine.tiny import BASE, CONFIGS, KINDS, tiny
from tests.engine.words import TEMPLATE, fast, talker


def arrays(kind: str) -> dict[str, NDArray[np.float32]]:
    shape, _, source = tiny(kind)
    found = {}
    for name, dims in parameter_shapes(shape).items():
        found[name] = np.empty(dims, np.float32)
        source.read_into(name, found[name])
    return found


def write_safetensors(path: Path, tensors: dict[str, NDArray[Any]], dtype: str) -> None:
    """The format by hand: a header of offsets, then the bytes."""
    header, data = {}, b""
    for name, array in tensors.items():
        raw = array.tobytes()
        header[name] = {"dtype": dtype, "shape": list(array.shape), "data_offsets": [len(data), len(data) + len(raw)]}
        data += raw
    text = json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + data)


def folder(path: Path, kind: str) -> Path:
    """A Hugging Face folder of the tiny model, in two files."""
    tensors = arrays(kind)
    names = list(tensors)
    for part in (0, 1):
        write_safetensors(path / f"model-{part}.safetensors", {name: tensors[name] for name in names[part::2]}, "F32")
    (path / "config.json").write_text(json.dumps({**BASE, **CONFIGS[kind]}))
    return path


def assert_same(kind: str, source: Any, tolerance: float = 0.0) -> None:
    for name, expected in arrays(kind).items():
        assert source.shape_of(name) == expected.shape
        read = np.empty_like(expected)
        source.read_into(name, read)
        assert np.abs(read - expected).max() <= tolerance, name


@pytest.mark.parametrize("kind", KINDS)
def test_a_folder_gives_back_what_was_written(kind: str, tmp_path: Path) -> None:
    source = SafetensorsFolder(folder(tmp_path, kind))
    assert_same(kind, source)
    assert build_weights(read_shape(ModelConfig.load(tmp_path)), source).nbytes == tiny(kind)[1].nbytes


@pytest.mark.parametrize("dtype, tolerance", [("BF16", 0.01), ("F16", 0.001)])
def test_half_precision_is_widened(dtype: str, tolerance: float, tmp_path: Path) -> None:
    def narrow(array: NDArray[np.float32]) -> NDArray[Any]:
        return (array.view(np.uint32) >> 16).astype(np.uint16) if dtype == "BF16" else array.astype(np.float16)

    write_safetensors(tmp_path / "m.safetensors", {n: narrow(a) for n, a in arrays("llama").items()}, dtype)
    assert_same("llama", SafetensorsFolder(tmp_path), tolerance)


def write_gguf(path: Path, kind: str) -> None:
    """As converters do: llama's queries and keys with neighbours paired."""
    family = "llama" if kind == "llama" else kind
    config = {**BASE, **CONFIGS[kind]}
    writer = gguf.GGUFWriter(path, family)
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_key_length(config["head_dim"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_rope_freq_base(10_000.0)
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH[family.upper()], config["num_hidden_layers"])
    for name, array in arrays(kind).items():
        heads = {"q": config["num_attention_heads"], "k": config["num_key_value_heads"]}.get(name[-13:-12])
        if family == "llama" and heads and "self_attn" in name:
            array = array.reshape(heads, 2, -1, array.shape[1]).swapaxes(1, 2).reshape(array.shape)
        translated = names.get_name(name, (".weight", ".bias"))
        assert translated is not None
        writer.add_tensor(translated, np.ascontiguousarray(array))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


@pytest.mark.parametrize("kind", ["llama", "qwen2", "qwen3"])
def test_a_gguf_file_gives_back_what_was_written(kind: str, tmp_path: Path) -> None:
    write_gguf(tmp_path / "tiny.gguf", kind)
    file = GGUFFile(tmp_path / "tiny.gguf")
    assert_same(kind, file)
    assert read_shape(file.config()).layers == tiny(kind)[0].layers


def test_a_loaded_folder_says_what_the_model_in_memory_says(tmp_path: Path) -> None:
    model = talker()
    shape = model.shape
    source = RandomSource(parameter_shapes(shape), seed=3)
    tensors = {}
    for name, dims in parameter_shapes(shape).items():
        tensors[name] = np.empty(dims, np.float32)
        source.read_into(name, tensors[name])
    write_safetensors(tmp_path / "model.safetensors", tensors, "F32")
    (tmp_path / "config.json").write_text(json.dumps(shape.config.raw))
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"chat_template": TEMPLATE}))
    fast().save(str(tmp_path / "tokenizer.json"))
    texts = []
    for loaded in (model, load_model(tmp_path)):
        engine = Engine(loaded.shape, loaded.weights, loaded.tokenizer, EngineSettings(num_blocks=50))
        ids = loaded.tokenizer.encode_chat([{"role": "user", "content": "hello"}])
        texts.append(engine.generate([ids], SamplingParams(max_tokens=20))[0].answers[0].text)
    assert texts[0] == texts[1] != ""


@pytest.mark.parametrize("name", ["model-0.safetensors", "tiny.gguf"])
@pytest.mark.parametrize("kept", [0, 7, 500, -100])
def test_a_file_that_is_cut_off_is_told_of(name: str, kept: int, tmp_path: Path) -> None:
    folder(tmp_path, "llama")
    write_gguf(tmp_path / "tiny.gguf", "llama")
    (tmp_path / name).write_bytes((tmp_path / name).read_bytes()[:kept])
    with pytest.raises(UsageError, match=r"cut off|no safetensors file"):
        GGUFFile(tmp_path / name) if name.endswith("gguf") else SafetensorsFolder(tmp_path)


def test_an_array_that_is_missing_or_of_another_shape_is_named(tmp_path: Path) -> None:
    shape, _, _ = tiny("llama")
    shapes = parameter_shapes(shape)
    missing = {name: dims for name, dims in shapes.items() if name != "model.norm.weight"}
    with pytest.raises(UsageError, match=r"have no model\.norm\.weight"):
        build_weights(shape, RandomSource(missing))
    with pytest.raises(UsageError, match=r"model.norm.weight is \[3\], the config says \[32\]"):
        build_weights(shape, RandomSource({**shapes, "model.norm.weight": (3,)}))


@pytest.mark.parametrize(
    "change, words",
    [
        ({"model_type": "mamba2", "num_heads": 4, "head_dim": 16}, "'mamba2' has no engine"),
        ({"model_type": "mixtral"}, "'mixtral' has no engine"),
        ({"rope_scaling": {"rope_type": "yarn", "factor": 4.0}}, "'yarn'"),
        ({"hidden_act": "relu"}, "hidden_act='relu'"),
        ({"quantization_config": {"quant_method": "fp8"}}, "quantization_config"),
    ],
)
def test_what_has_no_engine_is_refused_by_name(change: dict[str, Any], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        read_shape(ModelConfig.from_data({**BASE, "model_type": "llama", **change}))

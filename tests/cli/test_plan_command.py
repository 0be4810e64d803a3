"""`kvblocks plan` as its user meets it: what it prints, its JSON, its errors and exit codes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from kvblocks.sizing.catalogue import names
from tests.cli.command import failed, kvblocks

ROW = (
    "status error num_blocks block_size groups bytes_per_block tokens max_concurrency available_bytes "
    "needed_bytes_max_len estimated_max_model_len max_model_len fixed_bytes_per_request bytes_per_token"
).split()
GROUP = ["kind", "n_layers", "block_size", "page_size_bytes", "blocks_per_request"]


def answer(*arguments: str, code: int = 0) -> dict[str, Any]:
    run = kvblocks("plan", *arguments, "--json", "-")
    assert run.returncode == code, run.stderr
    assert "Traceback" not in run.stderr
    found: dict[str, Any] = json.loads(run.stdout)
    return found


@pytest.fixture
def config(tmp_path: Path) -> Path:
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "config.json").write_text(
        json.dumps(
            {
                "model_type": "llama",
                "num_hidden_layers": 2,
                "num_attention_heads": 8,
                "num_key_value_heads": 4,
                "hidden_size": 512,
                "intermediate_size": 1024,
                "vocab_size": 1000,
                "max_position_embeddings": 4096,
                "torch_dtype": "bfloat16",
            }
        )
    )
    return folder


def test_json_has_every_promised_field(config: Path) -> None:
    found = answer(str(config), "--available", "1GiB")
    assert set(ROW) <= found.keys()
    assert set(GROUP) <= found["groups"][0].keys()
    assert (found["status"], found["num_blocks"], found["bytes_per_block"]) == ("ok", 2**30 // 32768, [32768])
    assert found["effects"]
    assert {"flag", "before", "after", "cost", "num_blocks_change"} <= found["effects"][0].keys()


def test_the_file_its_folder_and_the_catalogue_are_all_models(config: Path) -> None:
    by_folder = answer(str(config), "--available", "1GiB", "--no-what-if")
    by_file = answer(str(config / "config.json"), "--available", "1GiB", "--no-what-if")
    assert by_folder == by_file
    assert answer("qwen3-8b", "--available", "9GiB", "--no-what-if")["num_blocks"] == 4096


def test_a_plan_that_does_not_fit_says_how_much_is_missing_and_ends_with_1(config: Path) -> None:
    found = answer(str(config), "--available", "4MiB", code=1)
    assert found["status"] == "does_not_fit"
    assert found["estimated_max_model_len"] == 127 * 16
    assert found["needed_bytes_max_len"] == [256 * 32768]
    run = kvblocks("plan", str(config), "--available", "4MiB")
    assert run.returncode == 1
    assert "Does not fit: max_model_len=4096 needs" in run.stdout
    assert "use max_model_len=2032 or less" in run.stdout


def test_what_vllm_refuses_is_said_in_json_and_on_standard_error_with_2(config: Path) -> None:
    run = kvblocks("plan", str(config), "--available", "1GiB", "-tp", "3", "--json", "-")
    assert run.returncode == 2
    assert json.loads(run.stdout)["status"] == "refused"
    assert "does not divide the 8 attention heads" in run.stderr
    failed(kvblocks("plan", str(config), "--available", "1GiB", "-tp", "3"), "does not divide the 8 attention heads")


def test_max_model_len_auto_takes_the_longest_that_fits(config: Path) -> None:
    assert answer(str(config), "--available", "4MiB", "--max-model-len", "auto")["max_model_len"] == 127 * 16


def test_memory_is_estimated_for_a_gpu_and_each_term_has_its_formula() -> None:
    found = answer("qwen3-8b", "--gpu", "h100", "--no-what-if")
    terms = {term["name"] for term in found["memory"][0]["terms"]}
    assert {"requested", "weights"} <= terms
    assert all(term["formula"] for term in found["memory"][0]["terms"])
    assert 0 < found["memory"][0]["available_low"] <= found["memory"][0]["available_best"]
    assert found["memory"][0]["available_best"] <= found["memory"][0]["available_high"]
    run = kvblocks("plan", "qwen3-8b", "--gpu", "h100", "--no-what-if")
    assert "weights" in run.stdout
    assert (
        max(len(line) for line in run.stdout.splitlines() if not line.startswith(("Every token", "Not modelled"))) <= 80
    )


def test_a_stated_memory_is_a_gpu_without_a_name() -> None:
    assert answer("qwen3-8b", "--memory", "80GiB", "--no-what-if")["status"] == "ok"
    assert answer("qwen3-8b", "--kv-cache-memory-bytes", "9GiB", "--no-what-if")["num_blocks"] == 4096


def test_weights_larger_than_the_memory_are_named() -> None:
    found = answer("llama-3.3-70b-instruct", "--gpu", "h100", "--no-what-if", code=1)
    assert found["error"].startswith("the weights take")
    assert "tensor_parallel_size=2" in found["error"]


def test_two_settings_stand_side_by_side(config: Path) -> None:
    found = answer(str(config), "--available", "1GiB", "--compare", "", "--kv-cache-dtype fp8 --block-size 32")
    assert [side["setting"] for side in found["compare"]] == ["as given", "--kv-cache-dtype fp8 --block-size 32"]
    assert [side["block_size"] for side in found["compare"]] == [16, 32]
    run = kvblocks("plan", str(config), "--available", "1GiB", "--compare", "", "--kv-cache-dtype fp8")
    assert "for each token" in run.stdout
    failed(
        kvblocks("plan", str(config), "--available", "1GiB", "--compare", "", "fp8"), "--compare 'fp8'", "is no flag"
    )


def test_the_search_finds_the_fewest_gpus_that_hold_the_requests() -> None:
    found = answer("llama-3.3-70b-instruct", "--gpu", "h100", "--gpus", "--requests", "8", "--length", "8192")
    best = found["found"]
    assert best["gpus"] > 1
    assert best["requests"] >= 8
    assert all(tried["gpus"] <= best["gpus"] for tried in found["tried"])
    failed(kvblocks("plan", "qwen3-8b", "--gpu", "h100", "--gpus", "--requests", "0"), "requests")


def test_a_batch_answers_line_by_line_in_order_with_paths_from_the_file_s_folder(config: Path) -> None:
    questions = config.parent / "questions.jsonl"
    lines: list[Any] = [
        {"model": "model", "flags": {}, "mem_gib": 1},
        {"model": "model", "flags": {"kv_cache_dtype": "fp8"}, "mem_gib": 1},
        {"model": "model", "flags": {"tensor_parallel_size": 3}, "mem_gib": 1},
        {"model": "absent", "flags": {}, "mem_gib": 1},
        {"model": "qwen3-8b", "flags": {}, "mem_gib": 9},
        {"model": "model", "flags": {}, "env": {"VLLM_KV_CACHE_LAYOUT": "BLHNC"}, "mem_gib": 0.001},
    ]
    questions.write_text("\n".join(json.dumps(line) for line in lines) + "\nnot json\n\n")
    run = kvblocks("plan", "--batch", str(questions))
    answers = [json.loads(line) for line in run.stdout.splitlines()]
    assert [one["status"] for one in answers] == ["ok", "ok", "refused", "refused", "ok", "does_not_fit", "refused"]
    assert answers[1]["num_blocks"] == 2 * answers[0]["num_blocks"]
    assert set(ROW) <= answers[0].keys()
    assert "absent" in answers[3]["error"]
    assert answers[4]["num_blocks"] == 4096
    from_stdin = kvblocks("plan", "--batch", "-", "--models", str(config.parent), stdin=questions.read_text())
    assert from_stdin.stdout == run.stdout


def test_the_catalogue_and_the_gpus_can_be_listed() -> None:
    assert kvblocks("plan", "--list-models").stdout.splitlines() == names()
    assert "H100" in kvblocks("plan", "--list-gpus").stdout


@pytest.mark.parametrize(
    "arguments, words",
    [
        ((), ["no model is named", "kvblocks plan qwen3-8b --gpu h100"]),
        (("qwen3-8b",), ["no memory is given", "--gpu", "--available"]),
        (("absent.json", "--available", "1GiB"), ["absent.json", "no such file or folder"]),
        (("qwen3-9b", "--available", "1GiB"), ["qwen3-9b", "Qwen/Qwen3-8B"]),
        (("qwen3-8b", "--gpu", "h1000"), ["h1000", "H100"]),
        (("qwen3-8b", "--gpu", "h100", "--memory", "80GiB"), ["either --gpu or --memory"]),
        (("qwen3-8b", "--available", "much"), ["--available 'much' is not a size", "40GiB"]),
        (("qwen3-8b", "--available", "1GiB", "--kv-cache-dtype", "fp7"), ["kv", "'fp7'", "fp8"]),
        (("qwen3-8b", "--available", "1GiB", "--block-size", "8"), ["block", "8", "use 16"]),
        (("qwen3-8b", "--available", "1GiB", "--max-model-len", "long"), ["--max-model-len 'long'", "auto"]),
        (("qwen3-8b", "--available", "1GiB", "--speculative-config", "{"), ["--speculative-config", "not JSON"]),
        (("qwen3-8b", "--available", "1GiB", "--env", "VLLM_X=1"), ["VLLM_X", "VLLM_PP_LAYER_PARTITION"]),
        (("qwen3-8b", "--gpu", "h100", "--gpu-memory-utilization", "92"), ["92", "share"]),
        (("--batch", "absent.jsonl"), ["absent.jsonl", "cannot be read"]),
        (("--from-log", "absent.log"), ["absent.log", "cannot be read"]),
    ],
)
def test_bad_input_names_the_value_and_the_fix(arguments: tuple[str, ...], words: list[str]) -> None:
    failed(kvblocks("plan", *arguments), *words)


@pytest.mark.parametrize(
    "content, words",
    [
        ("not json", ["config.json", "not JSON"]),
        ("[1]", ["config.json"]),
        ("{}", ["no model_type"]),
        ('{"model_type": "brandnew", "num_hidden_layers": 2}', ["brandnew", "--assume full-attention"]),
        ('{"model_type": "llama"}', ["num_hidden_layers"]),
        ('{"model_type": "llama", "num_hidden_layers": "two"}', ["num_hidden_layers", "two"]),
        ('{"model_type": "llama", "num_hidden_layers": 1000000000}', ["num_hidden_layers=1000000000", "correct"]),
        ('{"model_type": "llama", "num_hidden_layers": NaN}', ["num_hidden_layers=nan", "whole number"]),
        ('{"model_type": "llama", "num_hidden_layers": 2, "num_attention_heads": [8]}', ["num_attention_heads=[8]"]),
        ('{"model_type": "mamba", "num_hidden_layers": 2, "hidden_size": 64, "max_seq_len": -1}', ["max_seq_len=-1"]),
        (
            '{"model_type": "gpt_oss", "num_hidden_layers": 2, "num_attention_heads": 2, "head_dim": 64,'
            ' "max_position_embeddings": 64, "rope_scaling": {"factor": [1]}}',
            ["rope_scaling={'factor': [1]}", "correct the config"],
        ),
    ],
)
def test_a_config_that_is_none_is_refused_by_field(tmp_path: Path, content: str, words: list[str]) -> None:
    (tmp_path / "config.json").write_text(content)
    failed(kvblocks("plan", str(tmp_path), "--available", "1GiB"), *words)


def test_files_that_are_no_config_are_told_apart(tmp_path: Path) -> None:
    gguf = tmp_path / "model.gguf"
    gguf.write_bytes(b"GGUF" + bytes(100))
    failed(kvblocks("plan", str(gguf), "--available", "1GiB"), "GGUF", "config.json")
    failed(kvblocks("plan", str(tmp_path), "--available", "1GiB"), "config.json")


def test_an_unknown_family_is_planned_for_those_who_know_it(tmp_path: Path) -> None:
    config = {"model_type": "brandnew", "num_hidden_layers": 2, "num_attention_heads": 4, "hidden_size": 256}
    (tmp_path / "config.json").write_text(json.dumps({**config, "torch_dtype": "bfloat16"}))
    found = answer(str(tmp_path), "--available", "1GiB", "--assume", "full-attention")
    assert found["bytes_per_block"] == [2 * 16 * 2 * 256 * 2]

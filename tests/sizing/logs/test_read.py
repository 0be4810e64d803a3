"""The facts of a log, in every era's form and in what tools wrap around it."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest

from kvblocks.errors import UsageError
from kvblocks.sizing.logs import Gib, read_log
from kvblocks.sizing.logs.values import read_keywords, read_mapping, read_value
from tests.sizing.logs.eras import ERAS, Numbers, one_line, refusal, two_lines, v0_8, v0_8_old_engine


@pytest.mark.parametrize("version", ERAS)
def test_every_era_states_the_same_facts(version: str) -> None:
    n = Numbers()
    log = read_log(ERAS[version](n))
    assert log.version is not None
    assert log.version.value == version
    assert log.model is not None
    assert log.model.value == n.model
    assert log.status == "ready"
    assert log.max_model_len is not None
    assert log.max_model_len.value == n.length
    cache = log.cache
    assert cache is not None
    assert cache.concurrency is not None
    assert cache.concurrency.value == 3.32
    assert (cache.tokens or cache.num_blocks) is not None
    assert cache.tokens is None or cache.tokens.value == n.tokens
    assert cache.num_blocks is None or cache.num_blocks.value == n.blocks
    rank = log.ranks[0]
    assert rank.weights is not None
    assert rank.weights.value.gib == 15.27
    assert rank.graphs is not None
    assert rank.graphs.value == Gib(0.54)
    assert (log.available is None) == (version == "0.8.5")
    if log.available:
        assert log.available.value == Gib(18.69)


def test_every_fact_names_its_line_and_its_words() -> None:
    log = read_log(two_lines(Numbers(), "0.11.2", worker="Worker_TP0"))
    assert log.cache is not None
    assert log.cache.tokens is not None
    assert log.cache.tokens.line == 7
    assert log.cache.tokens.text == "GPU KV cache size: 136,080 tokens"
    assert log.cache.tokens.process == "EngineCore_DP0 pid=7"
    assert log.available is not None
    assert (log.available.line, log.available.process) == (6, "Worker_TP0 pid=7")
    assert log.ready is not None
    assert log.ready.value == 29.93


def test_arguments_become_flags_and_what_is_not_understood_is_named() -> None:
    lines = [
        "INFO non-default args: {'model': 'm', 'max_model_len': -1, 'dtype': 'float16', 'kv_cache_dtype': 'fp8_e5m2', "
        "'gpu_memory_utilization': 0.95, 'compilation_config': CompilationConfig(level=None, sizes=[1], x={'a': ','}), "
        "'speculative_config': {'method': 'mtp', 'num_speculative_tokens': 3}, 'hf_overrides': {'a': {'b': [1.5, None]}"
        "}, 'attention_backend': <AttentionBackendEnum.FLASH_ATTN: 'x.y'>, 'max_num_seqs': 'many'}",
        "(EngineCore pid=1) INFO Initializing a V1 LLM engine (v0.24.0) with config: model='m', "
        "speculative_config=SpeculativeConfig(method='mtp', model='m', num_spec_tokens=3), dtype=torch.float16, "
        "max_seq_len=5000, tensor_parallel_size=2, decode_context_parallel_size=2, quantization=awq,"
        " enforce_eager=True",
    ]
    log = read_log(lines)
    flags = log.flags
    assert (flags.max_model_len, flags.dtype, flags.kv_cache_dtype) == (-1, "float16", "fp8_e5m2")
    assert (flags.tensor_parallel_size, flags.decode_context_parallel_size) == (2, 2)
    assert (flags.quantization, flags.enforce_eager, flags.gpu_memory_utilization) == ("awq", True, 0.95)
    assert flags.num_speculative_tokens == 3
    assert flags.hf_overrides == {"a": {"b": [1.5, None]}}
    assert flags.attention_backend == "FLASH_ATTN"
    assert log.arguments is not None
    assert log.arguments.value["compilation_config"] == "CompilationConfig(level=None, sizes=[1], x={'a': ','})"
    assert list(log.not_understood) == ["max_num_seqs"]
    assert "max_num_seqs" not in log.stated
    assert log.max_model_len is not None
    assert log.max_model_len.value == 5000


@pytest.mark.parametrize(
    "line",
    [
        "INFO non-default args: {'api_key': ['sk-1234', 'sk-5678'], 'hf_token': 'hf_abc', 'model': 'm'}",
        "INFO args: Namespace(model='m', api_key='sk-1234', hf_token=hf_abc, allowed_origins=['*'])",
    ],
)
def test_keys_that_a_log_prints_are_not_passed_on(line: str) -> None:
    log = read_log([line])
    assert log.model is not None
    assert log.model.value == "m"
    shown = json.dumps(log.to_dict())
    assert "***" in shown
    assert not any(secret in shown for secret in ("sk-", "hf_abc"))


def test_a_speculative_config_is_found_in_the_engine_s_summary_alone() -> None:
    line = (
        "Initializing a V1 LLM engine (v0.29.0) with config: model='m', "
        "speculative_config=SpeculativeConfig(method='mtp', model='m', num_spec_tokens=3), seed=0"
    )
    assert read_log([line]).flags.draft == {"method": "mtp", "model": "m", "num_speculative_tokens": 3}


@pytest.mark.parametrize(
    ("version", "utilization"), [("0.11.0", 0.9), ("0.19.1", 0.9), ("0.20.0", 0.92), ("0.32.0", 0.92)]
)
def test_the_default_utilization_is_that_of_the_version(version: str, utilization: float) -> None:
    log = read_log(two_lines(Numbers(), version))
    assert log.flags.gpu_memory_utilization == utilization
    assert "gpu_memory_utilization" not in log.stated


def test_lines_about_blocks_padding_and_length_are_read() -> None:
    log = read_log(
        [
            "INFO Setting attention block size to 784 tokens to ensure that attention page size is >= mamba page size.",
            "INFO Padding mamba page size by 0.13% to ensure that mamba page size and attention page size are equal.",
            "WARNING Add 3 padding layers, may waste at most 9.09% KV cache memory",
            "(Worker_TP1 pid=3) WARNING Add 3 padding layers, may waste at most 9.09% KV cache memory",
            "WARNING Add 6 padding layers, may waste at most 60.00% KV cache memory",
            "INFO Multiplying the GPU KV cache size by the cp_world_size 8 (pcp_world_size 1 * dcp_world_size 8).",
            "INFO Overriding num_gpu_blocks=13185 with num_gpu_blocks_override=43",
            "INFO Auto-fit max_model_len: reduced from 262144 to 34736 to fit in available KV cache memory (3.18 GiB"
            " GPU)",
        ]
    )
    assert log.block_size == 784
    assert log.mamba_padding is not None
    assert log.mamba_padding.value == 0.13
    assert [(f.value.layers, f.value.percent) for f in log.layer_padding] == [(3, 9.09), (6, 60.0)]
    assert log.context_parallel is not None
    assert log.context_parallel.value == 8
    assert log.override is not None
    assert (log.override.value.profiled, log.override.value.blocks) == (13185, 43)
    assert log.flags.num_gpu_blocks_override == 43
    assert log.auto_fit is not None
    assert (log.auto_fit.value.before, log.auto_fit.value.after) == (262144, 34736)
    assert log.max_model_len is not None
    assert log.max_model_len.value == 34736


def test_the_small_cache_for_measuring_graphs_is_no_override() -> None:
    """0.17 to 0.20 print this in every worker while they profile CUDA graphs."""
    log = read_log(["(Worker_TP0 pid=3) INFO Overriding num_gpu_blocks=0 with num_gpu_blocks_override=16"])
    assert log.override is None
    assert log.flags.num_gpu_blocks_override is None


@pytest.mark.parametrize(
    "usage",
    [
        "15.27 GiB for weight, 1.40 GiB for peak activation, 0.07 GiB for non-torch memory, and 0.54 GiB for CUDAGraph "
        "memory. Replace",
        "15.34 GiB for consumed memory (weights + non-torch), 1.4 GiB for peak activation, and 0.54 GiB for CUDAGraph "
        "memory. Replace",
        "15.27 GiB for weights, 1.4 GiB for peak activation, 0.07 GiB for non-torch memory, 0.54 GiB for NPU graph "
        "memory",
    ],
)
def test_the_line_of_actual_usage_gives_a_rank_s_terms(usage: str) -> None:
    log = read_log(
        [
            "(Worker_TP0 pid=3) INFO Free memory on device (23.1/23.56 GiB) on startup. Desired GPU memory utilization "
            f"is (0.9, 21.2 GiB). Actual usage is {usage} gpu_memory_utilization config with `--kv-cache-memory=1`"
        ]
    )
    rank = log.ranks[0]
    assert rank.name == "Worker_TP0 pid=3"
    assert rank.total is not None
    assert (rank.total.value.gib, log.flags.gpu_memory_utilization) == (23.56, 0.9)
    assert rank.budget is not None
    assert rank.budget.value.gib == 21.2
    assert rank.activation is not None
    assert rank.activation.value.gib == 1.4
    assert rank.graphs is not None
    assert rank.graphs.value.gib == 0.54
    assert (rank.weights is None) != (rank.consumed is None)


@pytest.mark.parametrize(
    ("line", "kind", "numbers"),
    [
        (refusal(262144, "24.0", "3.18", 34736), "length", (262144, 24.0, 3.18, 34736)),
        (refusal(1048576, "24.00", "9.97"), "length", (1048576, 24.0, 9.97, None)),
        (
            "ValueError: To serve at least one request with the model's max seq len (65536), 9.48 GiB KV cache is "
            "needed, which is larger than the available KV cache memory (4.42 GiB). Based on the available memory, the "
            "estimated maximum model length is 11656. Try increasing",
            "length",
            (65536, 9.48, 4.42, 11656),
        ),
        (
            "ValueError: The model's max seq len (8192) is larger than the maximum number of tokens that can be stored "
            "in KV cache (2400). Try increasing",
            "length-in-tokens",
            (8192, None, None, None),
        ),
        ("ValueError: No available memory for the cache blocks. Try", "no-memory", (None, None, None, None)),
        (
            "ValueError: Free memory on device cuda:0 (20.1/23.56 GiB) on startup is less than desired GPU memory "
            "utilization (0.9, 21.2 GiB). Decrease",
            "free-memory",
            (None, 21.2, 20.1, None),
        ),
        (
            "ValueError: Free memory on device (20.1/23.56 GiB) on startup is less than desired GPU memory utilization "
            "(0.9, 21.2 GiB). Decrease",
            "free-memory",
            (None, 21.2, 20.1, None),
        ),
        (
            "ValueError: max_num_seqs (256) exceeds available Mamba cache blocks (134).",
            "mamba-blocks",
            (None, None, None, None),
        ),
        ("ValueError: Cannot auto-fit max_model_len: not enough GPU memory", "auto-fit", (None, None, None, None)),
    ],
)
def test_refusals_are_told_apart(line: str, kind: str, numbers: tuple[float | None, ...]) -> None:
    log = read_log([f"(EngineCore_DP0 pid=9) ERROR 01-28 00:18:18 [core.py:935] {line}", line])
    assert log.status == "refused"
    assert [fact.value.kind for fact in log.refusals] == [kind]
    value = log.refusals[0].value
    found = (value.max_model_len, value.needed, value.available, value.estimated)
    assert tuple(n.gib if isinstance(n, Gib) else n for n in found) == numbers
    assert log.refusals[0].process == "EngineCore_DP0 pid=9"


def test_source_lines_of_a_traceback_are_no_refusals() -> None:
    log = read_log(
        [
            "INFO Model loading took 15.27 GiB and 3.2 seconds",
            'ERROR [core.py:708]     raise ValueError("No available memory for the cache blocks. "',
            'ERROR [core.py:708]     f"To serve at least one request with the models\'s max seq len "',
        ]
    )
    assert log.refusals == ()


@pytest.mark.parametrize("width", [70, 90, 118, 150])
def test_a_refusal_that_a_terminal_wrapped_is_put_together(width: int) -> None:
    text = "(EngineCore pid=316) " + refusal(100000, "4.26", "4.25", 99840)
    log = read_log([text[i : i + width] for i in range(0, len(text), width)])
    assert log.refusals[0].value.needed == Gib(4.26)
    assert log.refusals[0].value.estimated == 99840


def test_a_refusal_that_an_editor_wrapped_is_put_together() -> None:
    log = read_log(refusal(32000, "1.1", "0.59").replace(", (", ",\n(").splitlines())
    assert log.refusals[0].value.needed == Gib(1.1)


def test_old_megabytes_and_gigabytes_are_binary() -> None:
    log = read_log(["INFO Loading model weights took 14.9888 GB", "INFO Available KV cache memory: 512.00 MiB"])
    rank = log.ranks[0]
    assert rank.weights is not None
    assert rank.weights.value.gib == 14.9888
    assert rank.weights.value.half == pytest.approx(0.00005)
    assert log.available is not None
    assert log.available.value.gib == 0.5


def wrapped_docker(lines: list[str]) -> list[str]:
    return [json.dumps({"log": line + "\n", "stream": "stderr", "time": "2026-05-12T10:11:12Z"}) for line in lines]


def wrapped_kubernetes(lines: list[str]) -> list[str]:
    cut = [(line[:40], line[40:]) for line in lines]
    return [
        f"2026-05-12T10:11:12.123456789Z stdout {flag} {part}"
        for first, second in cut
        for flag, part in (("P", first), ("F", second))
    ]


def wrapped_own_json(lines: list[str]) -> list[str]:
    return [
        json.dumps({"levelname": "INFO", "processName": "EngineCore_DP0", "process": 7, "message": line})
        for line in lines
    ]


def wrapped_cloud(lines: list[str]) -> list[str]:
    return [json.dumps({"severity": "INFO", "jsonPayload": {"message": line}}) for line in lines]


def wrapped_compose(lines: list[str]) -> list[str]:
    return [f"vllm-1  | {line}" for line in lines]


def wrapped_syslog(lines: list[str]) -> list[str]:
    return [f"May 12 10:11:12 node7 vllm[4242]: {line}" for line in lines]


def wrapped_colours(lines: list[str]) -> list[str]:
    return [line.replace("INFO", "\x1b[32mINFO\x1b[0m").replace("(", "\x1b[0;36m(", 1) for line in lines]


def wrapped_half_colours(lines: list[str]) -> list[str]:
    return [f"[1;36m{line}[0;0m" for line in lines]


def wrapped_line_ends(lines: list[str]) -> list[str]:
    return [f"{line}\r\n" for line in lines]


def wrapped_progress(lines: list[str]) -> list[str]:
    bar = "Capturing CUDA graphs (decode, FULL):  96%|█████▊| 49/51 [00:01<00:00, 26.29it/s]"
    return [f"{bar}\r{bar}{line}" for line in lines]


def wrapped_quotes(lines: list[str]) -> list[str]:
    return [f"> {line}" for line in lines]


WRAPPERS = [value for name, value in sorted(globals().items()) if name.startswith("wrapped_")]


@pytest.mark.parametrize("wrapper", WRAPPERS, ids=lambda wrapper: wrapper.__name__)
@pytest.mark.parametrize(
    "era", [v0_8_old_engine, v0_8, lambda n: two_lines(n, "0.15.1"), lambda n: one_line(n, "0.32.0")]
)
def test_what_tools_wrap_around_lines_is_taken_off(wrapper, era) -> None:  # type: ignore[no-untyped-def]
    plain, wrapped = read_log(era(Numbers())), read_log(wrapper(era(Numbers())))
    for log in (plain, wrapped):
        assert log.status == "ready"
        assert log.cache is not None
        assert log.cache.concurrency is not None
        assert log.cache.concurrency.value == 3.32
    assert wrapped.flags == plain.flags
    assert wrapped.version is not None
    assert plain.version is not None
    assert wrapped.version.value == plain.version.value
    assert [rank.weights and rank.weights.value for rank in wrapped.ranks] == [
        rank.weights and rank.weights.value for rank in plain.ranks
    ]


def test_vllm_s_own_json_names_the_process() -> None:
    log = read_log(wrapped_own_json(["Available KV cache memory: 18.69 GiB"]))
    assert log.ranks[0].name == "EngineCore_DP0 pid=7"


def test_the_memory_of_a_cpu_is_measured_or_given() -> None:
    auto = "INFO Auto set (30.5/125.6) GiB for KV cache on node 0, with 50.24 GiB requested memory for the worker."
    rank = read_log([auto]).ranks[0]
    assert rank.available is not None
    assert (rank.available.value.gib, rank.reserved) == (30.5, None)
    rank = read_log(["INFO Explicitly set (8.0/125.6) GiB for KV cache on node 0."]).ranks[0]
    assert rank.reserved is not None
    assert (rank.reserved.value.gib, rank.available) == (8.0, None)


def test_memory_that_was_given_is_read_as_such() -> None:
    line = (
        "INFO Initial free memory 31.17 GiB, reserved 3.0 GiB memory for KV Cache as specified by kv_cache_memory_bytes"
    )
    log = read_log([line])
    assert log.available is not None
    assert log.available.value.gib == 3.0
    assert log.ranks[0].free is not None
    assert log.ranks[0].free.value.gib == 31.17


def test_interleaved_ranks_keep_their_own_terms_and_the_least_memory_counts() -> None:
    sizes = ["18.69", "18.61", "17.02", "18.69"]
    lines = [f"(VllmWorker rank={i} pid={40 + i}) INFO Model loading took 15.27 GiB and 3.2 seconds" for i in range(4)]
    lines += [
        f"(VllmWorker rank={i} pid={40 + i}) INFO Available KV cache memory: {s} GiB" for i, s in enumerate(sizes)
    ]
    log = read_log(lines)
    assert [rank.name for rank in log.ranks] == [f"VllmWorker rank={i} pid={40 + i}" for i in range(4)]
    assert [rank.available and rank.available.value.gib for rank in log.ranks] == [18.69, 18.61, 17.02, 18.69]
    assert log.available is not None
    assert (log.available.value.gib, log.available.line) == (17.02, 7)


def test_ranks_that_print_their_own_size_are_paired_with_their_concurrency() -> None:
    """0.8 prints both lines once per rank, without a name."""
    lines = ["INFO GPU KV cache size: 148,096 tokens", "INFO Maximum concurrency for 131,072 tokens per request: 1.13x"]
    lines += [
        "INFO GPU KV cache size: 140,000 tokens",
        "INFO Maximum concurrency for 131,072 tokens per request: 1.07x",
    ]
    log = read_log(lines)
    assert len(log.caches) == 2
    assert log.cache is not None
    assert log.cache.tokens is not None
    assert log.cache.concurrency is not None
    assert (log.cache.tokens.value, log.cache.concurrency.value) == (140000, 1.07)


def test_an_open_file_a_path_and_lines_give_the_same(tmp_path: Path) -> None:
    lines = one_line(Numbers(), "0.32.0")
    path = tmp_path / "vllm.log"
    path.write_text("\n".join(lines), encoding="utf-8")
    logs = [read_log(path), read_log(str(path)), read_log(lines), read_log(io.BytesIO(path.read_bytes()))]
    logs.append(read_log([line.encode() for line in lines], "standard input"))
    assert len({log.cache for log in logs}) == 1
    assert [log.source for log in logs] == [str(path), str(path), "log", "log", "standard input"]


@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16", "utf-16-le"])
def test_a_byte_order_mark_is_understood(tmp_path: Path, encoding: str) -> None:
    """PowerShell's redirect writes UTF-16."""
    path = tmp_path / "vllm.log"
    mark = "\ufeff" if encoding == "utf-16-le" else ""
    path.write_bytes((mark + "\r\n".join(two_lines(Numbers(), "0.11.2"))).encode(encoding))
    with path.open("rb") as file:
        logs = read_log(path), read_log(file)
    for log in logs:
        assert log.status == "ready"
        assert log.ready is not None
        assert log.ready.line == 10


def test_what_is_no_log_is_refused_with_what_to_do(tmp_path: Path) -> None:
    (tmp_path / "binary").write_bytes(b"\x7fELF\0\0\0\1" * 100)
    (tmp_path / "log.gz").write_bytes(b"\x1f\x8b\x08\0data")
    (tmp_path / "other.log").write_text("hello\nworld\n")
    (tmp_path / "empty.log").write_text("")
    for name, words in {
        "missing": "no such file",
        "": "is a folder",
        "binary": "binary file",
        "log.gz": "gunzip",
        "other.log": r"has no line that vLLM prints .*2 lines read.*'GPU KV cache size'",
        "empty.log": "0 lines read",
    }.items():
        with pytest.raises(UsageError, match=words):
            read_log(tmp_path / name)
        if name in ("binary", "log.gz"):
            with (tmp_path / name).open("rb") as file, pytest.raises(UsageError, match=words):
                read_log(file)
    for wrong, words in ((b"bytes", "splitlines"), (7, "splitlines"), ([3], "must be text"), ("a\nb", "splitlines")):
        with pytest.raises(UsageError, match=words):
            read_log(wrong)  # type: ignore[arg-type]


def test_a_file_without_line_ends_is_read_in_pieces(tmp_path: Path) -> None:
    path = tmp_path / "long.log"
    path.write_text("x" * 3_000_000 + " GPU KV cache size: 16 tokens")
    log = read_log(path)
    assert log.cache is not None
    assert log.cache.tokens is not None
    assert log.cache.tokens.value == 16


def test_a_long_serving_log_after_the_start_changes_nothing() -> None:
    lines = two_lines(Numbers(), "0.19.1")
    serving = [
        "(APIServer pid=1) INFO Engine 000: Avg prompt throughput: 1.0 tokens/s, GPU KV cache usage: 3.2%"
    ] * 5000
    error = ["(APIServer pid=1) ERROR ValueError: This model's maximum context length is 40960 tokens."]
    log = read_log(lines + serving + error)
    assert log.lines_read == len(lines) + 5001
    assert log.errors == ()
    assert log.start.last_line == len(lines)


def test_printed_values_are_read_without_running_anything() -> None:
    assert read_value("{'a': (1, -2.5, 'x\\'y'), 'b': [True, None], 3: {}}") == {
        "a": [1, -2.5, "x'y"],
        "b": [True, None],
        "3": {},
    }
    assert read_value("__import__('os').getcwd()") == "__import__('os').getcwd()"
    assert read_mapping("{'cut': 1, 'whole': 'a, b', 'open': [1, 2") == {"cut": 1, "whole": "a, b"}
    assert read_keywords("a=1, b=B(c=2, d='x,y'), e='f") == {"a": 1, "b": "B(c=2, d='x,y')"}
    assert read_value("[" * 100 + "]" * 100) is not None

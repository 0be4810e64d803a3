"""Small start-up logs in the form of each era, written from numbers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class Numbers:
    """What an era's log states. Sizes are GiB with two decimals."""

    model: str = "Qwen/Qwen3-8B"
    length: int = 40960
    tokens: int = 136080
    concurrency: str = "3.32"
    weights: str = "15.27"
    available: str = "18.69"
    graphs: str = "0.54"
    batched: int = 2048

    @property
    def blocks(self) -> int:
        return self.tokens // 16


def config(n: Numbers, **more: object) -> str:
    """The engine's own summary of its config."""
    fields: dict[str, object] = {
        "model": repr(n.model),
        "speculative_config": None,
        "dtype": "torch.bfloat16",
        "max_seq_len": n.length,
    }
    fields |= {"tensor_parallel_size": 1, "quantization": None, "kv_cache_dtype": "auto"} | more
    return ", ".join(f"{name}={value}" for name, value in fields.items())


def v0_8_old_engine(n: Numbers) -> list[str]:
    """vLLM 0.8 with the V0 engine: blocks, and all memory terms in two lines."""
    rest = f"{float(n.weights) + 0.07 + 1.4 + float(n.available):.2f}"
    budget = f"{float(rest) / 0.9:.2f}GiB) x gpu_memory_utilization (0.90) = {rest}GiB"
    terms = f"model weights take {n.weights}GiB; non_torch_memory takes 0.07GiB; PyTorch activation peak memory takes "
    return [
        "INFO 04-17 15:09:01 [api_server.py:1034] vLLM API server version 0.8.4",
        f"INFO 04-17 15:09:01 [api_server.py:1035] args: Namespace(model={n.model!r}, block_size=None, seed=None)",
        f"INFO 04-17 15:09:05 [llm_engine.py:241] Initializing a V0 LLM engine (v0.8.4) with config: {config(n)}",
        f"INFO 04-17 15:09:40 [model_runner.py:1146] Model loading took {n.weights}00 GiB and 3.201201 seconds",
        "INFO 04-17 15:09:44 [worker.py:267] Memory profiling takes 3.70 seconds",
        f"INFO 04-17 15:09:44 [worker.py:267] the current vLLM instance can use total_gpu_memory ({budget}",
        f"INFO 04-17 15:09:44 [worker.py:267] {terms}1.40GiB; the rest of the memory reserved for KV Cache is "
        f"{n.available}GiB.",
        f"INFO 04-17 15:09:45 [executor_base.py:112] # cuda blocks: {n.blocks}, # CPU blocks: 2048",
        f"INFO 04-17 15:09:45 [executor_base.py:117] Maximum concurrency for {n.length} tokens per request: "
        f"{n.concurrency}x",
        f"INFO 04-17 15:10:05 [model_runner.py:1598] Graph capturing finished in 20 secs, took {n.graphs} GiB",
        "INFO 04-17 15:10:05 [core.py:447] init engine (profile, create kv cache, warmup model) took 25.1 seconds",
    ]


def v0_8(n: Numbers) -> list[str]:
    """vLLM 0.8 with the V1 engine: no memory line, no process names."""
    return [
        f"INFO 05-01 10:00:01 [core.py:58] Initializing a V1 LLM engine (v0.8.5) with config: {config(n)}",
        f"INFO 05-01 10:00:30 [gpu_model_runner.py:1347] Model loading took {n.weights} GiB and 3.2 seconds",
        f"INFO 05-01 10:00:40 [kv_cache_utils.py:634] GPU KV cache size: {n.tokens:,} tokens",
        f"INFO 05-01 10:00:40 [kv_cache_utils.py:637] Maximum concurrency for {n.length:,} tokens per request: "
        f"{n.concurrency}x",
        f"INFO 05-01 10:01:00 [gpu_model_runner.py:1686] Graph capturing finished in 20 secs, took {n.graphs} GiB",
    ]


def two_lines(n: Numbers, version: str, engine: str = "EngineCore_DP0", worker: str = "EngineCore_DP0") -> list[str]:
    """0.9 to 0.26: the size and the concurrency on a line each, process names in front."""
    return [
        f"(APIServer pid=1) INFO 11-28 11:45:51 [api_server.py:1977] vLLM API server version {version}",
        "(APIServer pid=1) INFO 11-28 11:45:51 [utils.py:253] non-default args: "
        f"{{'host': '0.0.0.0', 'model': {n.model!r}, 'max_model_len': {n.length}, 'max_num_seqs': 6}}",
        "(APIServer pid=1) INFO 11-28 11:45:55 [scheduler.py:216] Chunked prefill is enabled with "
        f"max_num_batched_tokens={n.batched}.",
        f"({engine} pid=7) INFO 11-28 11:46:01 [core.py:93] Initializing a V1 LLM engine (v{version}) with config: "
        f"{config(n)}",
        f"({worker} pid=7) INFO 11-28 11:46:30 [runner.py:2653] Model loading took {n.weights} GiB memory and "
        "3.200001 seconds",
        f"({worker} pid=7) INFO 11-28 11:46:41 [gpu_worker.py:298] Available KV cache memory: {n.available} GiB",
        f"({engine} pid=7) INFO 11-28 11:46:41 [kv_cache_utils.py:1087] GPU KV cache size: {n.tokens:,} tokens",
        f"({engine} pid=7) INFO 11-28 11:46:41 [kv_cache_utils.py:1091] Maximum concurrency for {n.length:,} tokens "
        f"per request: {n.concurrency}x",
        f"({worker} pid=7) INFO 11-28 11:46:59 [gpu_model_runner.py:3480] Graph capturing finished in 9 secs, took "
        f"{n.graphs} GiB",
        f"({engine} pid=7) INFO 11-28 11:47:00 [core.py:210] init engine (profile, create kv cache, warmup model) took "
        "29.93 seconds",
        "(APIServer pid=1) INFO:     Application startup complete.",
    ]


def one_line(n: Numbers, version: str) -> list[str]:
    """Since 0.27: one line for both, the version in a banner, and CUDA graphs estimated first."""
    return [
        "(APIServer pid=1) INFO 08-14 14:06:01 [api_utils.py:347]",
        f"(APIServer pid=1) INFO 08-14 14:06:01 [api_utils.py:347]  ▄▄ ▄█ █     █     █ ▀▄▀ █  version {version}",
        f"(APIServer pid=1) INFO 08-14 14:06:01 [api_utils.py:347]   █▄█▀ █     █     █     █  model   {n.model}",
        "(APIServer pid=1) INFO 08-14 14:06:02 [api_utils.py:286] non-default args: "
        f"{{'model_tag': {n.model!r}, 'model': {n.model!r}, 'max_model_len': {n.length}, 'max_num_seqs': 6}}",
        "(APIServer pid=1) INFO 08-14 14:06:05 [scheduler.py:277] Chunked prefill is enabled with "
        f"max_num_batched_tokens={n.batched}.",
        f"(EngineCore pid=7) INFO 08-14 14:06:11 [core.py:123] Initializing a V1 LLM engine (v{version}) with config: "
        f"{config(n)}",
        f"(EngineCore pid=7) INFO 08-14 14:06:40 [model_runner.py:425] Model loading took {n.weights} GiB memory and "
        "3.200001 seconds",
        f"(EngineCore pid=7) INFO 08-14 14:06:50 [runner.py:6806] Estimated CUDA graph memory: {n.graphs} GiB total",
        f"(EngineCore pid=7) INFO 08-14 14:06:50 [gpu_worker.py:563] Available KV cache memory: {n.available} GiB",
        f"(EngineCore pid=7) INFO 08-14 14:06:50 [kv_cache_utils.py:2327] GPU KV cache size: {n.tokens:,} tokens, "
        f"Maximum concurrency for {n.length:,} tokens per request: {n.concurrency}x",
        f"(EngineCore pid=7) INFO 08-14 14:07:02 [model_runner.py:1128] Graph capturing finished in 9 secs, took "
        f"{n.graphs} GiB",
        "(EngineCore pid=7) INFO 08-14 14:07:03 [core.py:402] init engine (profile, create kv cache, warmup model) "
        "took 23.10 s",
    ]


ERAS: dict[str, Callable[[Numbers], list[str]]] = {
    "0.8.4": v0_8_old_engine,
    "0.8.5": v0_8,
    "0.9.2": lambda n: two_lines(n, "0.9.2", engine="EngineCore_0", worker="VllmWorker rank=0"),
    "0.10.1": lambda n: two_lines(n, "0.10.1", worker="VllmWorker TP0"),
    "0.11.2": lambda n: two_lines(n, "0.11.2", worker="Worker_TP0"),
    "0.15.1": lambda n: two_lines(n, "0.15.1", worker="Worker_PP0_TP0"),
    "0.19.1": lambda n: two_lines(n, "0.19.1", engine="EngineCore", worker="Worker"),
    "0.22.0": lambda n: two_lines(n, "0.22.0", engine="EngineCore", worker="Worker_DP0_TP0_EP0"),
    "0.24.0": lambda n: two_lines(n, "0.24.0", engine="EngineCore", worker="EngineCore"),
    "0.27.1": lambda n: one_line(n, "0.27.1"),
    "0.29.1rc1.dev422+gd05da62e9": lambda n: one_line(n, "0.29.1rc1.dev422+gd05da62e9"),
    "0.32.0": lambda n: one_line(n, "0.32.0"),
    "0.33.0": lambda n: one_line(n, "0.33.0"),
}


def refusal(length: int, needed: str, available: str, estimated: int | None = None) -> str:
    """The refusal of a length, without a prefix."""
    text = (
        f"ValueError: To serve at least one request with the models's max seq len ({length}), ({needed} GiB KV cache "
        f"is needed, which is larger than the available KV cache memory ({available} GiB). "
    )
    if estimated is not None:
        text += f"Based on the available memory, the estimated maximum model length is {estimated}. "
    return text + "Try increasing `gpu_memory_utilization` or decreasing `max_model_len` when initializing the engine."

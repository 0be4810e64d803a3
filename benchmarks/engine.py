"""What the engine does per second on this machine, against what its memory bandwidth allows."""

from __future__ import annotations

import argparse
import json
import resource
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from kvblocks.engine import Engine, EngineSettings, SamplingParams, load_model
from kvblocks.engine.weights import AttentionWeights

MIB = 2**20


def best_of(times: int, function: Callable[[], float]) -> float:
    return min(function() for _ in range(times))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", type=Path, help="write the figures here")
    arguments = parser.parse_args()
    model = load_model()
    engine = Engine(model.shape, model.weights, model.tokenizer, EngineSettings(kv_memory_bytes=400 * MIB))
    rng = np.random.default_rng(0)
    params = SamplingParams(max_tokens=32, ignore_end=True)

    matrices = [model.weights.head]
    for layer in model.weights.layers:
        assert isinstance(layer.mixer, AttentionWeights)
        matrices += [layer.mixer.qkv, layer.mixer.out, layer.gate_up, layer.down]
    vectors = {matrix.shape[1]: rng.random(matrix.shape[1], np.float32) for matrix in matrices}

    def bandwidth_bound_s() -> float:
        """One matrix-vector product with every matrix: what a token costs at least."""
        start = time.perf_counter()
        for matrix in matrices:
            matrix @ vectors[matrix.shape[1]]
        return time.perf_counter() - start

    def tokens_per_s(requests: int) -> float:
        prompts = [rng.integers(100, 40_000, 40).tolist() for _ in range(requests)]
        answers = [generation.answers[0] for generation in engine.generate(prompts, params)]
        start = max(answer.first_token_s or 0 for answer in answers)
        return requests * (params.max_tokens - 1) / (max(answer.finished_s or 0 for answer in answers) - start)

    def first_token_s(prompt: list[int]) -> float:
        (generation,) = engine.generate([prompt], SamplingParams(max_tokens=1))
        answer = generation.answers[0]
        return (answer.first_token_s or 0) - answer.arrival_time_s

    bound = best_of(5, bandwidth_bound_s)
    one, sixteen = -best_of(3, lambda: -tokens_per_s(1)), -best_of(3, lambda: -tokens_per_s(16))
    prompt = rng.integers(100, 40_000, 1500).tolist()
    cold, warm = first_token_s(prompt), best_of(3, lambda: first_token_s(prompt))
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    figures = {
        "bound_tokens_per_s": 1 / bound,
        "one_request_tokens_per_s": one,
        "share_of_bound": one * bound,
        "sixteen_requests_tokens_per_s": sixteen,
        "batch_gain": sixteen / one,
        "cold_first_token_s": cold,
        "cached_first_token_s": warm,
        "cold_over_cached": cold / warm,
        "peak_bytes_beside_weights_and_cache": peak - model.weights.nbytes - engine.storage.nbytes,
    }
    for name, value in figures.items():
        print(f"{name:40} {value:,.4g}")
    if arguments.json:
        arguments.json.write_text(json.dumps(figures, indent=2) + "\n")


if __name__ == "__main__":
    main()

"""Runs real vLLM in this process and writes what it did as JSON: `engine_run MODELS_DIR OUTPUT SCENARIO`.

The environment says whether kvblocks manages the cache. Everything that could differ is recorded: tokens,
log-probabilities, cached tokens, and for every step the block numbers that the scheduler sent to the worker.
"""

from __future__ import annotations

import json
import os
import random
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ.setdefault("VLLM_ENABLE_V1_MULTIPROCESSING", "0")

VOCABULARY = 512
GREEDY: dict[str, Any] = {"temperature": 0.0, "ignore_eos": True}
BASE: dict[str, Any] = {
    "enforce_eager": True,
    "skip_tokenizer_init": True,
    "max_model_len": 512,
    "max_num_seqs": 16,
    "max_num_batched_tokens": 256,
    "dtype": "float32",
    "seed": 0,
    "block_size": 32,
    "disable_log_stats": False,
    "num_gpu_blocks_override": 400,
    "gpu_memory_utilization": 0.3,
}


class Recorder:
    """What the scheduler sent to the worker, step by step, and what it preempted."""

    def __init__(self, scheduler: Any) -> None:
        self.steps: list[Any] = []
        self.preempted = self.copies = 0
        self._names: dict[str, int] = {}
        self._schedule = scheduler.schedule
        scheduler.schedule = self.schedule

    def schedule(self, *args: Any, **kwargs: Any) -> Any:
        output = self._schedule(*args, **kwargs)
        cached = output.scheduled_cached_reqs
        copies = [(copy.src_block_id, copy.dst_block_id) for copy in output.kv_cache_block_copies or ()]
        self.preempted += len(output.preempted_req_ids or ())
        self.copies += len(copies)
        self.steps.append(
            [
                [[self._name(new.req_id), new.num_computed_tokens, new.block_ids] for new in output.scheduled_new_reqs],
                [[self._name(name), blocks] for name, blocks in zip(cached.req_ids, cached.new_block_ids, strict=True)],
                sorted((self._name(name), count) for name, count in output.num_scheduled_tokens.items()),
                output.new_block_ids_to_zero,
                copies,
            ]
        )
        return output

    def _name(self, request_id: str) -> int:
        """Requests by the order in which they appeared: their ids are partly random."""
        return self._names.setdefault(request_id, len(self._names))


def prompts(rng: random.Random, count: int) -> list[list[int]]:
    """Prompts that share beginnings of different lengths."""
    shared = [rng.randrange(3, VOCABULARY) for _ in range(150)]
    return [
        shared[: rng.choice([0, 40, 64, 96, 150])] + [rng.randrange(3, VOCABULARY) for _ in range(rng.randint(5, 70))]
        for _ in range(count)
    ]


def generate(llm: Any, tokens: list[list[int]], salts: list[str | None] | None = None, **sampling: Any) -> list[Any]:
    """Per prompt: the outputs' tokens, the prompt's log-probabilities, and how many tokens were cached."""
    from vllm import SamplingParams

    asked: list[dict[str, Any]] = [{"prompt_token_ids": prompt} for prompt in tokens]
    for prompt, salt in zip(asked, salts or (), strict=False):
        if salt is not None:
            prompt["cache_salt"] = salt
    results = llm.generate(asked, SamplingParams(**sampling), use_tqdm=False)
    return [
        [[list(out.token_ids) for out in result.outputs], _logprobs(result.prompt_logprobs), result.num_cached_tokens]
        for result in results
    ]


def _logprobs(positions: Any) -> Any:
    if positions is None:
        return None
    return [p and sorted((token, round(entry.logprob, 4)) for token, entry in p.items()) for p in positions]


def aborts(llm: Any, tokens: list[list[int]]) -> list[Any]:
    """Requests of which a third is aborted while others run."""
    from vllm import SamplingParams

    engine = llm.llm_engine
    names = [
        engine.add_request(f"abort-{i}", {"prompt_token_ids": prompt}, SamplingParams(max_tokens=8 + i, **GREEDY))
        for i, prompt in enumerate(tokens)
    ]
    finished, steps = [], 0
    while engine.has_unfinished_requests():
        finished += [list(output.outputs[0].token_ids) for output in engine.step() if output.finished]
        steps += 1
        if steps in (2, 4, 6):
            engine.abort_request([name or f"abort-{i}" for i, name in enumerate(names) if i % 3 == steps % 3])
    return [sorted(finished), steps]


def traffic(llm: Any) -> dict[str, Any]:
    """Everything that the issue lists for one engine."""
    rng = random.Random(11)
    some, others = prompts(rng, 12), prompts(rng, 4)
    record: dict[str, Any] = {}
    record["shared prefixes"] = generate(llm, some, max_tokens=34, **GREEDY)
    record["again"] = generate(llm, some, max_tokens=6, **GREEDY)
    record["reset"] = llm.reset_prefix_cache()
    record["after reset"] = generate(llm, some[:4] + others, max_tokens=6, **GREEDY)
    record["several outputs"] = generate(llm, others[:2], n=3, max_tokens=8, temperature=0.9, ignore_eos=True)
    record["prompt log-probabilities"] = generate(llm, some[:2], max_tokens=2, prompt_logprobs=2, **GREEDY)
    salts = ["a", "b", "a", None]
    record["salts"] = generate(llm, [some[0]] * 4, salts, max_tokens=3, **GREEDY)
    record["salts again"] = generate(llm, [some[0]] * 4, salts, max_tokens=3, **GREEDY)
    record["aborts"] = aborts(llm, some[:6])
    return record


def repetitive(llm: Any) -> dict[str, Any]:
    """Prompts that repeat themselves, so that n-gram drafts are accepted and rejected."""
    rng = random.Random(4)
    loops = [prompt[:20] * 5 + prompt[:7] for prompt in prompts(rng, 6)]
    return {"loops": generate(llm, loops, max_tokens=40, **GREEDY), **traffic(llm)}


def through_connector(llm: Any) -> dict[str, Any]:
    """Prompts whose blocks a connector stored, and loads after the cache was reset."""
    some = prompts(random.Random(6), 6)
    record: dict[str, Any] = {"shared prefixes": generate(llm, some, max_tokens=6, **GREEDY)}
    record["reset"] = llm.reset_prefix_cache()
    record["loaded"] = generate(llm, some, max_tokens=6, **GREEDY)
    record["again"] = generate(llm, some, max_tokens=6, **GREEDY)
    record["aborts"] = aborts(llm, some)
    return record


def words(llm: Any) -> dict[str, Any]:
    """Real text through real weights."""
    from vllm import SamplingParams

    system = "You are a careful assistant. " * 12
    chats = [
        [{"role": "system", "content": system}, {"role": "user", "content": question}]
        for question in ("Name three rivers in France.", "What is a cache?", "Count to ten.", "Who wrote Faust?")
    ]
    record = {}
    for name in ("first", "again"):
        results = llm.chat(chats, SamplingParams(temperature=0, max_tokens=80, ignore_eos=True), use_tqdm=False)
        record[name] = [[r.outputs[0].text, list(r.outputs[0].token_ids), r.num_cached_tokens] for r in results]
    return record


SMALL = {"num_gpu_blocks_override": 24}
NGRAM = {"method": "ngram", "num_speculative_tokens": 3, "prompt_lookup_max": 4}
SMOL = {"skip_tokenizer_init": False, "max_model_len": 320}
SCENARIOS: dict[str, tuple[str, dict[str, Any], Callable[[Any], dict[str, Any]]]] = {
    "llama": ("llama", {}, traffic),
    "llama, small cache": ("llama", SMALL, traffic),
    "llama, caching off": ("llama", {**SMALL, "enable_prefix_caching": False}, traffic),
    "llama, n-gram drafts": ("llama", {"speculative_config": NGRAM}, repetitive),
    "llama, n-gram drafts, small cache": ("llama", {**SMALL, "speculative_config": NGRAM}, repetitive),
    "llama, connector": ("llama", {"kv_connector": True}, through_connector),
    "llama, two workers": ("llama", {"tensor_parallel_size": 2}, traffic),
    "sliding": ("sliding", {}, traffic),
    "sliding, small cache": ("sliding", {"num_gpu_blocks_override": 84}, traffic),
    "states": ("states", {}, traffic),
    "states, small cache": ("states", {"num_gpu_blocks_override": 30}, traffic),
    "states, hits inside blocks": ("states", {"prefix_match_unit": 8}, traffic),
    "states, hits inside blocks, small cache": (
        "states",
        {"prefix_match_unit": 8, "num_gpu_blocks_override": 30},
        traffic,
    ),
    "smollm2": ("smollm2", {**SMOL}, words),
    "smollm2, small cache": ("smollm2", {**SMOL, "num_gpu_blocks_override": 12}, words),
}
"""By name: the model, what differs from the usual engine, and what is asked of it."""


def run(models: Path, scenario: str) -> dict[str, Any]:
    from vllm import LLM

    model, options, ask = SCENARIOS[scenario]
    options = dict(options)
    with tempfile.TemporaryDirectory() as storage:
        if options.pop("kv_connector", False):
            options["kv_transfer_config"] = {
                "kv_connector": "ExampleConnector",
                "kv_role": "kv_both",
                "kv_connector_extra_config": {"shared_storage_path": storage},
            }
        llm: Any = LLM(model=str(models / model), **{**BASE, **options})
        scheduler = llm.llm_engine.engine_core.engine_core.scheduler
        recorder = Recorder(scheduler)
        manager = scheduler.kv_cache_manager
        answers = ask(llm)
        record = {
            "answers": answers,
            "steps": recorder.steps,
            "preempted": recorder.preempted,
            "copies": recorder.copies,
            "usage": manager.usage,
            "manager": type(manager).__name__,
            "groups": len(manager.empty_kv_cache_blocks.blocks),
        }
        if hasattr(manager, "core"):
            manager.core.check()
        llm.llm_engine.engine_core.shutdown()
    return record


if __name__ == "__main__":
    Path(sys.argv[2]).write_text(json.dumps(run(Path(sys.argv[1]), sys.argv[3])))

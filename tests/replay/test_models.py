"""Replays over the groups of a model, as a plan lays them out."""

from __future__ import annotations

from typing import Any

import pytest

from kvblocks.errors import UsageError
from kvblocks.replay import CacheLayout, Replay, ReplaySettings, replay
from kvblocks.scheduling import SchedulerConfig
from kvblocks.sizing import Plan, plan
from kvblocks.traces import TraceRequest, Workload, generate

CHATS = list(generate("chat", Workload(requests=60, seed=5, system_tokens=512)))
FULL = {"model_type": "llama", "num_hidden_layers": 4, "num_attention_heads": 8, "hidden_size": 512}
FULL |= {"num_key_value_heads": 2, "max_position_embeddings": 65536, "torch_dtype": "bfloat16", "vocab_size": 1000}
WINDOWED = {**FULL, "model_type": "gpt_oss", "sliding_window": 128, "head_dim": 64}
STATES = {
    **FULL,
    "model_type": "qwen3_next",
    "head_dim": 64,
    "full_attention_interval": 4,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 32,
    "linear_value_head_dim": 32,
    "linear_conv_kernel_dim": 4,
}


def planned(config: dict[str, Any], blocks: int = 4000, **flags: Any) -> Plan:
    found = plan(config, {"num_gpu_blocks_override": blocks, "max_model_len": 16384, **flags}, available_bytes=1)
    assert found.ok, found.error
    return found


def replayed(found: Plan, *, serial: bool, blocks: int | None = None, **scheduler: Any) -> Replay:
    settings = ReplaySettings(
        block_size=found.block_size or 16,
        layout=CacheLayout.of_plan(found),
        serial=serial,
        max_model_len=found.max_model_len,
        scheduler=SchedulerConfig(**scheduler),
    )
    return replay(lambda: CHATS, [blocks or found.num_blocks or 0], settings)


@pytest.mark.parametrize("serial", [True, False])
def test_one_group_of_full_attention_hits_what_a_cache_without_a_model_hits(serial: bool) -> None:
    plain = replay(lambda: CHATS, [800], ReplaySettings(serial=serial, max_model_len=16384)).runs[0].to_dict()
    of_model = replayed(planned(FULL), serial=serial, blocks=800).runs[0].to_dict()
    assert of_model == plain


@pytest.mark.parametrize("serial", [True, False])
@pytest.mark.parametrize("config", [WINDOWED, STATES])
def test_windows_and_states_hit_at_their_own_granularity(config: dict[str, Any], serial: bool) -> None:
    found = planned(config)
    run = replayed(found, serial=serial).runs[0]
    assert run.requests == len(CHATS)
    assert not run.rejected
    full = replayed(planned(FULL), serial=serial).runs[0]
    assert 0 < run.hit_tokens <= full.hit_tokens
    assert run.hit_tokens % max(group.block_size for group in found.groups) == 0


def test_a_model_without_prefix_caching_hits_nothing() -> None:
    run = replayed(planned(FULL, enable_prefix_caching=False), serial=False).runs[0]
    assert (run.requests, run.hit_tokens, run.evicted_blocks) == (len(CHATS), 0, 0)


@pytest.mark.parametrize("serial", [True, False])
def test_a_prompt_larger_than_the_cache_is_rejected_and_the_others_run(serial: bool) -> None:
    requests = [TraceRequest("long", 9000, num_output_tokens=0), *CHATS[:5]]
    found = planned(STATES)
    settings = ReplaySettings(block_size=found.block_size or 16, layout=CacheLayout.of_plan(found), serial=serial)
    run = replay(lambda: requests, [150], settings).runs[0]
    assert (run.rejected, run.requests) == (1, 5)


def test_a_plan_that_did_not_come_out_has_no_layout() -> None:
    with pytest.raises(UsageError, match="no cache to manage"):
        CacheLayout.of_plan(plan(FULL, {"max_model_len": 16384}, available_bytes=1000))

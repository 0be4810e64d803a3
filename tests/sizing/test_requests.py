"""How many requests fit, by their length; and which steps make a plan fit."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvblocks import BlockHasher, KVCacheManager, TokenRequest
from kvblocks.errors import UsageError
from kvblocks.sizing import EngineFlags, Plan, Setting, plan
from kvblocks.sizing.catalogue import find_model, names
from kvblocks.sizing.devices import find_device
from kvblocks.sizing.effects import effects

GIB = 2**30


def planned(model: str, gib: float, **flags: object) -> Plan:
    return plan(find_model(model), flags, available_bytes=int(gib * GIB))


def test_requests_are_counted_whole_and_without_the_null_block() -> None:
    found = planned("qwen3-8b", 40)
    usable = (found.num_blocks or 0) - 1
    assert found.requests_at(1) == found.requests_at(16) == usable
    assert found.requests_at(17) == usable // 2
    assert found.requests_at(1000) == usable // 63


def test_vllm_s_concurrency_counts_the_null_block_and_so_may_promise_one_more() -> None:
    found = planned("llama-3.3-70b-instruct", 200)
    assert found.max_concurrency == 5.0
    assert found.requests_at(131072) == 4


@pytest.mark.parametrize("model", ["qwen3-8b", "gpt-oss-20b", "gemma-3-1b-it", "llama-4-maverick-17b-128e-instruct"])
def test_a_manager_of_the_plan_takes_as_many_requests_and_no_more(model: str) -> None:
    found = planned(model, 200, num_gpu_blocks_override=900, max_model_len=512, max_num_batched_tokens=512)
    manager = KVCacheManager(**{**found.kv_cache_config(), "enable_caching": False})
    hasher = BlockHasher(16)
    for length in (1, 40, 300, 512):
        held: list[TokenRequest] = []
        while len(held) <= found.requests_at(length):
            request = TokenRequest(f"{len(held)}", [1] * length, hasher)
            if manager.allocate_slots(request, length) is None:
                break
            held.append(request)
        for request in held:
            manager.free(request)
        assert len(held) >= found.requests_at(length)  # at most what is counted is held by each
        if model == "qwen3-8b":
            assert len(held) == found.requests_at(length)


@settings(deadline=None, max_examples=60)
@given(model=st.sampled_from(names()), gib=st.integers(1, 200), length=st.integers(1, 2**20))
def test_longer_requests_never_fit_more_often(model: str, gib: int, length: int) -> None:
    found = planned(model, gib)
    if not found.ok or found.max_model_len is None or length >= found.max_model_len:
        return
    assert found.requests_at(length) >= found.requests_at(length + 1) >= found.requests_at(found.max_model_len) >= 1
    curve = found.requests_by_length()
    assert curve == sorted(curve)
    assert [n for _, n in curve] == sorted((n for _, n in curve), reverse=True)
    assert curve[-1] == (found.max_model_len, found.requests_at(found.max_model_len))
    assert found.to_dict()["requests_by_length"] == [{"tokens": tokens, "requests": n} for tokens, n in curve]


def test_a_length_that_no_request_can_have_is_refused() -> None:
    found = planned("qwen3-8b", 40, max_model_len=100)
    for length in (0, -1, 101):
        with pytest.raises(UsageError, match=f"a request of {length} tokens: give 1 to max_model_len=100"):
            found.requests_at(length)
    assert found.requests_by_length()[-1] == (100, found.requests_at(100))
    stopped = planned("qwen3-8b", 1)
    assert stopped.requests_by_length() == []
    with pytest.raises(UsageError, match="there is no cache to hold requests: max_model_len=40960 needs"):
        stopped.requests_at(1)


def test_steps_that_make_a_plan_fit_are_told_the_most_requests_first() -> None:
    flags = EngineFlags(gpu_memory_utilization=0.88)
    setting = Setting(config=find_model("gemma-3-27b-it-text"), device=find_device("h100"), flags=flags)
    base = setting.plan()
    assert base.status == "does_not_fit"
    found = effects(setting, base)
    fitting = [effect for effect in found if effect.status == "ok"]
    assert {"kv_cache_dtype", "tensor_parallel_size", "max_model_len"} <= {effect.flag for effect in fitting}
    assert not [effect for effect in found if effect.status == "does_not_fit"]
    held = [effect.max_concurrency or 0.0 for effect in fitting]
    assert held == sorted(held, reverse=True)
    assert found[: len(fitting)] == fitting


def test_given_flags_are_those_that_differ_from_the_defaults() -> None:
    assert EngineFlags().given() == {}
    assert EngineFlags.from_mapping({"-tp": 2, "kv_cache_dtype": "auto"}).given() == {"tensor_parallel_size": 2}

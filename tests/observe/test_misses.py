"""Miss reasons, one scenario each: what is said is what happened."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from kvblocks.kinds import FullAttentionSpec, KVCacheSpec, MambaSpec, SlidingWindowSpec
from kvblocks.observe import (
    Evicted,
    FirstSeen,
    GroupVeto,
    InFlight,
    KeyDiffers,
    MissReasons,
    RequestMisses,
)
from kvblocks.prefix import ExtraKeys, LoRAKey, MultiModalItem
from tests.cases.scenario import Engine

FULL = FullAttentionSpec(block_size=4)


class Watched(Engine):
    """An engine that keeps what was said of each admission."""

    def __init__(self, *args: Any, bounds: dict[str, Any] | None = None, **options: Any) -> None:
        self.said: list[RequestMisses] = []
        self.now_s = 0.0
        reasons = MissReasons(clock=lambda: self.now_s, on_request=self.said.append, **(bounds or {}))
        super().__init__(*args, observer=reasons, **options)
        self.reasons = reasons

    def once(self, prompt: Iterable[int], keys: ExtraKeys | None = None) -> RequestMisses:
        """Admit, finish and free a prompt."""
        self.free(self.admit(prompt, keys))
        return self.said[-1]


def parts(said: RequestMisses) -> list[tuple[str, int, int]]:
    assert said.hit_tokens + said.external_tokens + sum(said.reasons.values()) == said.num_tokens
    return [(miss.reason, miss.start, miss.end) for miss in said.misses]


def test_a_prompt_like_no_other_is_seen_for_the_first_time() -> None:
    engine = Watched()
    said = engine.once(range(10))
    assert parts(said) == [("first_seen", 0, 10)]
    assert said.misses[0].detail == FirstSeen(None, 0)


def test_a_prompt_parts_from_the_one_that_shares_most_with_it() -> None:
    engine = Watched()
    engine.once(range(10))
    engine.once([*range(6), 90, 91, 92, 93])
    said = engine.once([*range(4), 50, 51, 52])
    assert parts(said) == [("first_seen", 4, 7)]
    said = engine.once([*range(7), 80, 81, 82])
    assert parts(said) == [("partial_block", 4, 7), ("first_seen", 7, 10)]
    assert said.misses[-1].detail == FirstSeen("r1", 7)
    said = engine.once([*range(6), 90, 70, 71])
    assert said.misses[-1].detail == FirstSeen("r2", 7)


def test_what_is_shared_is_shorter_than_a_block() -> None:
    engine = Watched(block_size=16)
    engine.once(range(9))
    assert parts(engine.once([*range(9), 50, 51])) == [("partial_block", 0, 9), ("first_seen", 9, 11)]
    assert parts(engine.once(range(9))) == [("partial_block", 0, 8), ("last_token", 8, 9)]


def test_one_token_must_be_computed_so_its_block_is() -> None:
    engine = Watched()
    engine.once(range(12))
    assert parts(engine.once(range(12))) == [("last_token", 8, 12)]
    assert parts(engine.once(range(13))) == [("first_seen", 12, 13)]


def test_evicted_content_names_who_took_its_place_and_what_would_have_kept_it() -> None:
    engine = Watched(usable_blocks=6)
    engine.once(range(13))
    engine.now_s = 10.0
    engine.once(range(100, 117))
    engine.now_s = 70.0
    said = engine.once(range(13))
    assert parts(said) == [("evicted", 4, 12), ("last_token", 12, 13)]
    detail = said.misses[0].detail
    assert isinstance(detail, Evicted)
    assert detail.displaced_by == "r2"
    assert detail.admissions_ago == 1
    assert detail.seconds_ago == 60.0
    assert detail.more_blocks is not None
    larger = Watched(usable_blocks=6 + detail.more_blocks)
    smaller = Watched(usable_blocks=5 + detail.more_blocks)
    for other in (larger, smaller):
        other.once(range(13))
        other.once(range(100, 117))
        other.once(range(13))
    assert larger.said[-1].hit_tokens == 12 > smaller.said[-1].hit_tokens


def test_content_that_was_evicted_on_request_was_displaced_by_nobody() -> None:
    engine = Watched()
    request = engine.admit(range(9))
    engine.manager.evict_blocks(engine.table(request)[1:2])
    engine.free(request)
    said = engine.once(range(9))
    assert parts(said)[0] == ("evicted", 4, 8)
    assert said.misses[0].detail == Evicted(None, None, None, None)


def test_another_salt_adapter_or_image_is_told_by_kind_and_a_salt_never_by_value() -> None:
    engine = Watched()
    engine.once(range(13), ExtraKeys(cache_salt="tenant one"))
    said = engine.once(range(13), ExtraKeys(cache_salt="tenant two"))
    assert parts(said) == [("key_differs", 0, 12), ("first_seen", 12, 13)]
    assert said.misses[0].detail == KeyDiffers("cache_salt", "r1", None, None)
    assert "tenant" not in repr(said)
    said = engine.once(range(13))
    assert said.misses[0].detail == KeyDiffers("cache_salt", "r2", None, None)
    said = engine.once(range(13), ExtraKeys(lora=LoRAKey("legal")))
    assert said.misses[0].detail == KeyDiffers("lora", "r3", "legal", None)
    engine.once(range(20, 33), ExtraKeys(multimodal=(MultiModalItem("cat", 5, 3),)))
    said = engine.once(range(20, 33), ExtraKeys(multimodal=(MultiModalItem("dog", 5, 3),)))
    assert parts(said) == [("key_differs", 4, 12), ("first_seen", 12, 13)]
    assert said.misses[0].detail == KeyDiffers("image", "r5", "dog", "cat")


def test_a_twin_that_still_computes_is_in_flight() -> None:
    engine = Watched()
    twin = engine.request(range(20))
    engine.try_admit(twin, 8)
    said_of = engine.admit(range(20))
    said = engine.said[-1]
    assert said.hit_tokens == 8
    assert parts(said) == [("in_flight", 8, 20)]
    assert said.misses[0].detail == InFlight("r1")
    engine.free(said_of, twin)


def test_what_an_aborted_request_never_computed_is_seen_for_the_first_time() -> None:
    engine = Watched()
    aborted = engine.request(range(20))
    engine.try_admit(aborted, 8)
    engine.free(aborted)
    assert parts(engine.once(range(20))) == [("first_seen", 8, 20)]
    assert engine.said[-1].misses[0].detail == FirstSeen("r1", 8)


def test_a_twin_takes_over_what_an_aborted_request_was_computing() -> None:
    engine = Watched()
    first, second = engine.request(range(20)), engine.request(range(20))
    engine.try_admit(first, 8)
    engine.try_admit(second, 4)
    engine.free(first)
    third = engine.request(range(20))
    engine.try_admit(third, 4)
    assert parts(engine.said[-1]) == [("in_flight", 12, 20)]
    assert engine.said[-1].misses[0].detail == InFlight("r2")
    engine.free(second, third)


def test_a_request_that_must_not_read_the_cache_opted_out() -> None:
    engine = Watched()
    engine.once(range(12))
    request = engine.request(range(12))
    request.skip_reading_prefix_cache = True
    engine.try_admit(request)
    assert parts(engine.said[-1]) == [("opted_out", 0, 12)]
    without = Watched(enable_caching=False)
    assert parts(without.once(range(12))) == [("opted_out", 0, 12)]


def test_what_a_preempted_request_computes_again_is_its_own() -> None:
    engine = Watched(usable_blocks=6)
    request = engine.admit(range(13))
    engine.preempt(request)
    engine.once(range(100, 117))
    engine.try_admit(request)
    said = engine.said[-1]
    assert said.resumed
    assert said.hit_tokens == 4
    assert parts(said) == [("preempted", 4, 13)]


def test_after_a_reset_the_reason_is_the_reset() -> None:
    engine = Watched()
    engine.once(range(13))
    assert engine.manager.reset_prefix_cache()
    assert parts(engine.once(range(13))) == [("reset", 0, 12), ("last_token", 12, 13)]
    assert parts(engine.once(range(14)))[-1] == ("first_seen", 13, 14)


def test_a_draft_head_computes_the_end_of_a_hit_again() -> None:
    engine = Watched(use_eagle=True)
    engine.once(range(14))
    said = engine.once([*range(13), 77])
    assert said.hit_tokens == 8
    assert parts(said) == [("draft_head", 8, 12), ("partial_block", 12, 13), ("first_seen", 13, 14)]


def test_a_window_that_kept_only_its_end_vetoes_a_shorter_hit() -> None:
    specs: list[KVCacheSpec] = [FULL, SlidingWindowSpec(block_size=4, sliding_window=5)]
    engine = Watched(usable_blocks=40, specs=specs, max_in_flight_tokens=8)
    request = engine.request(range(32))
    engine.try_admit(request, 8)
    for _ in range(3):
        engine.manager.new_step_starts()
        assert engine.manager.allocate_slots(request, 8) is not None
        request.num_computed_tokens += 8
    engine.free(request)
    said = engine.once([*range(16), 90, 91])
    assert said.hit_tokens == 0
    assert parts(said) == [("group_veto", 0, 16), ("first_seen", 16, 18)]
    assert said.misses[0].detail == GroupVeto(1, "retention")
    kept = Watched(usable_blocks=40, specs=specs, max_in_flight_tokens=8, retention_interval=None)
    kept.once(range(32))
    assert kept.once([*range(16), 90, 91]).hit_tokens == 16


def test_a_state_without_a_checkpoint_there_vetoes() -> None:
    specs: list[KVCacheSpec] = [FULL, MambaSpec(block_size=4)]
    engine = Watched(usable_blocks=40, specs=specs)
    engine.once(range(32))
    said = engine.once([*range(16), 90, 91])
    assert parts(said)[0][0] == "group_veto"
    assert said.misses[0].detail == GroupVeto(1, "checkpoint_spacing")


def test_external_tokens_are_no_misses() -> None:
    engine = Watched()
    request = engine.request(range(14))
    assert engine.try_admit(request, 6, num_external_computed_tokens=8) is not None
    assert (engine.said[-1].external_tokens, parts(engine.said[-1])) == (8, [("first_seen", 8, 14)])


def test_generated_tokens_are_known_to_the_next_turn() -> None:
    engine = Watched()
    request = engine.admit(range(10))
    for token in range(100, 109):
        engine.decode(request, token)
    engine.free(request)
    answer = request.all_token_ids[10:]
    said = engine.once([*range(10), *answer, 1, 2, 3])
    assert said.hit_tokens == 16
    assert parts(said) == [("partial_block", 16, 19), ("first_seen", 19, 22)]


def test_what_was_forgotten_is_unknown_and_never_a_guess() -> None:
    engine = Watched(usable_blocks=6, bounds={"max_units": 8})
    engine.once(range(9))
    for start in range(100, 400, 20):
        engine.once(range(start, start + 9))
    said = engine.once(range(9))
    assert parts(said) == [("unknown", 0, 8), ("first_seen", 8, 9)]
    few_tokens = Watched(bounds={"max_token_bytes": 1500})
    few_tokens.once(range(7))
    for start in range(100, 200, 20):
        few_tokens.once(range(start, start + 7))
    assert parts(few_tokens.once(range(6))) == [("unknown", 4, 6)]


def test_memory_stays_within_its_bounds_however_many_sessions_there_are() -> None:
    reasons = MissReasons(max_units=1000, max_token_bytes=64 * 1024)
    engine = Engine(usable_blocks=50, observer=reasons)
    for session in range(4000):
        engine.manager.free(engine.admit(range(session * 20, session * 20 + 10)))
    assert len(reasons.memory) <= 1000
    assert reasons.memory.num_token_bytes <= 64 * 1024
    assert sum(map(len, reasons._ghosts)) <= 1000
    assert reasons.totals.tokens == 40_000 == sum(reasons.totals.reasons.values())

"""Many clients and a tiny pool: nothing fails that was not asked for, nothing leaks, no word is wrong."""

from __future__ import annotations

import asyncio

from tests.serving.load import storm
from tests.serving.server import server


def test_many_clients_over_a_tiny_pool_get_their_own_answers() -> None:
    with server(num_blocks=60, max_num_seqs=16, max_num_batched_tokens=64, debug=False) as running:
        seen = asyncio.run(storm(running, clients=64, requests=1984))
        assert not seen.wrong
        assert seen.hung_up > 150
        assert (seen.answered + seen.hung_up, seen.refused) == (1984, 0)
        assert running.live_blocks() == 0
        assert not running.engine.has_work
        assert running.engine.stats.preemptions > 0
        assert running.engine.cache_stats.stats.evicted_hashes > 0

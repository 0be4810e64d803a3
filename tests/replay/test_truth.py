"""The serial replay gives what vLLM's own manager gave, driven the same way over a recorded trace."""

from __future__ import annotations

import json
from typing import Any

import pytest

from kvblocks.replay import ReplaySettings, replay
from kvblocks.traces import open_trace
from tests.shared import shared


@pytest.mark.parametrize("outputs", [False, True])
def test_every_row_of_the_conversation_replay_is_met_exactly(outputs: bool) -> None:
    rows = [json.loads(line) for line in shared("truth/replay_serial_conversation.jsonl").read_text().splitlines()]
    expected = {row["num_blocks"]: row for row in rows if row["outputs"] == outputs}
    assert len(expected) >= 3
    trace = str(shared("traces/mooncake/conversation_trace.jsonl"))
    settings = ReplaySettings(block_size=512, serial=True, outputs=outputs)
    found = replay(lambda: open_trace(trace), list(expected), settings)
    for run in found.to_dict()["runs"]:
        row: dict[str, Any] = expected.pop(run["num_blocks"])
        for name in ("requests", "rejected", "prompt_tokens", "hit_tokens"):
            assert run[name] == row[name], (run["num_blocks"], name)
        for name in ("hit_rate", "hit_rate_last_half"):
            assert round(run[name], 6) == row[name], (run["num_blocks"], name)
    assert not expected

"""Configs of 149 model families beside what vLLM 0.32's own planning code answers for them.

`families.jsonl`: a line per config, with answers for several settings each. They were computed by the installed vLLM on
a pretended H100 without FlashInfer. The configs have the dimensions of published models as we remember them; what
counts is that both sides read the same file. `groups` is run-length encoded: [times, [vLLM's spec, layers, block size,
page bytes, blocks per request]].
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from kvblocks.sizing import plan

FAMILIES = [json.loads(line) for line in Path(__file__).with_name("families.jsonl").read_text().splitlines()]


@pytest.mark.parametrize("family", [pytest.param(family, id=family["name"]) for family in FAMILIES])
def test_a_family_gets_the_blocks_that_vllm_gives_it(family: dict[str, Any]) -> None:
    for want in family["answers"]:
        found = plan(
            family["config"], want["flags"], available_bytes=int(want["mem_gib"] * 2**30), env=want["env"], folders=[]
        )
        said = (family["name"], want["flags"], want["env"], found.error)
        assert found.status == want["status"], said
        if found.status != "ok":
            assert found.error, said
            continue
        groups = [
            (g.vllm_type, g.n_layers, g.block_size, g.page_size_bytes, g.blocks_per_request) for g in found.groups
        ]
        assert groups == [tuple(group) for times, group in want["groups"] for _ in range(times)], said
        for name in ("num_blocks", "block_size", "tokens"):
            assert getattr(found, name) == want[name], (name, said)
        assert list(found.bytes_per_block) == want["bytes_per_block"], said
        assert round(found.max_concurrency or 0, 4) == want["max_concurrency"], said


def test_the_families_are_many_and_of_all_kinds() -> None:
    kinds = {group[0] for family in FAMILIES for want in family["answers"] for _, group in want.get("groups", ())}
    assert kinds >= {
        "FullAttentionSpec",
        "SlidingWindowSpec",
        "ChunkedLocalAttentionSpec",
        "MLAAttentionSpec",
        "MambaSpec",
    }
    assert {want["status"] for family in FAMILIES for want in family["answers"]} == {"ok", "does_not_fit", "refused"}
    assert len({family["config"]["model_type"] for family in FAMILIES}) > 75

"""A cache that knows the future: it gives up what is needed again last (Belady, 1966), a chain's end before its start.

Whoever needs a block needs those before it too, so a block is never needed later than what continues it, and giving up
the block that is needed last never leaves one without its prefix. It holds what it computes like any cache: a running
prompt's blocks are live. No online policy knows what it knows; as all blocks count the same, none hits more blocks
than this one, up to the blocks of the prompt that is running.
"""

from __future__ import annotations

from heapq import heappop, heappush

from kvblocks.replay.chains import Chains


def clairvoyant_hits(chains: Chains, num_blocks: int, *, outputs: bool = True) -> int:
    """Hit tokens of a serial replay with so many blocks, the null block included.

    Raises UsageError when a prompt does not fit so few.
    """
    chains.check_size(num_blocks)
    capacity = num_blocks - 1
    futures = _futures(chains)
    kept: dict[tuple[int, int], int] = {}  # (prompt that needs it next, prompt that touched it last) -> its blocks
    order: list[tuple[int, int, int]] = []  # (-next prompt, -first block, last prompt)
    cached = hits = 0
    for number, chain in enumerate(chains.prompts):
        found, whole = 0, True
        for piece in chain.pieces:
            blocks = kept.pop((number, piece.prompt), 0)
            cached -= blocks
            if whole:
                found += blocks
            whole = whole and blocks == piece.end - piece.start
        hits += min(found, chains.may_hit(chain))
        live = chains.blocks(chain, outputs=outputs)
        if live > capacity:
            live = chains.blocks(chain, outputs=False)  # its outputs are refused
        # What nobody needs again is not even entered: it would be the first to go.
        while (excess := cached + live - capacity) > 0:
            following, start, last = heappop(order)
            blocks = kept.pop((-following, last), 0)
            if blocks > excess:
                kept[-following, last] = blocks - excess
                heappush(order, (following, start, last))
            cached -= min(blocks, excess)
        for following, start, end in futures[number]:
            kept[following, number] = end - start
            cached += end - start
            heappush(order, (-following, -start, number))
    return hits * chains.block_size


def _futures(chains: Chains) -> list[list[tuple[int, int, int]]]:
    """For each prompt the pieces of it that are needed again: by whom next, and which of its blocks."""
    futures: list[list[tuple[int, int, int]]] = [[] for _ in chains.prompts]
    for number, chain in enumerate(chains.prompts):
        for piece in chain.pieces:
            futures[piece.prompt].append((number, piece.start, piece.end))
    return futures

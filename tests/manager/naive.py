"""A manager written to be obviously right: one list for the free queue, one list for the index, rules by definition.

It knows full attention, sliding windows and chunked local attention, several groups, draft heads where all block sizes
are equal, and sparse retention without draft heads. Everything is O(n) or worse.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from kvblocks.manager import TokenRequest


@dataclass
class NaiveGroup:
    kind: str  # "full", "sliding" or "chunked"
    block_size: int
    reach: int = 0  # the window or the chunk, in tokens
    drop: bool = False  # a draft head reads this group

    def first_needed(self, n: int) -> int:
        """The first token that a token at position n reads."""
        if self.kind == "full":
            return 0
        return max(0, n - self.reach + 1) if self.kind == "sliding" else n // self.reach * self.reach

    def positions_to_resume(self, n: int) -> range:
        """The block positions that must be cached for going on at token n."""
        end = n // self.block_size + self.drop
        if self.kind == "sliding":  # a whole window of blocks before n, wherever in its block the window begins
            return range(max(0, end - self.drop - -(-(self.reach - 1) // self.block_size)), end)
        return range(self.first_needed(n) // self.block_size, end)


@dataclass
class Naive:
    num_blocks: int
    groups: list[NaiveGroup]
    max_model_len: int
    caching: bool = True
    watermark_blocks: int = 0
    in_flight: int = 0
    retention: int | None = None
    free: list[int] = field(default_factory=list)  # in the order in which blocks are handed out
    count: dict[int, int] = field(default_factory=dict)
    index: list[tuple[int, bytes, int]] = field(default_factory=list)  # (group, hash, block), oldest first
    tables: dict[str, list[list[int]]] = field(default_factory=dict)
    cached: dict[str, list[int]] = field(default_factory=dict)  # per group: blocks considered for caching

    def __post_init__(self) -> None:
        self.free = list(range(1, self.num_blocks))
        self.count = dict.fromkeys(self.free, 0)

    def step(self) -> int:
        """Hits end on multiples of this."""
        size = 1
        while any(size % group.block_size for group in self.groups):
            size += 1
        return size

    def find(self, group: int, block_hash: bytes) -> int | None:
        return next((b for g, h, b in self.index if (g, h) == (group, block_hash)), None)

    def hash_at(self, request: TokenRequest, group: NaiveGroup, position: int, unit: int) -> bytes | None:
        at = (position + 1) * group.block_size // unit - 1
        return request.block_hashes[at] if at < len(request.block_hashes) else None

    def lookup(self, request: TokenRequest, unit: int) -> tuple[int, list[list[int]]]:
        """The largest n at which every group can go on, by trying all."""
        limit = request.num_tokens - 1
        if len(self.groups) == 1 and self.groups[0].drop:
            limit -= self.groups[0].block_size
        for n in range(limit // self.step() * self.step(), 0, -self.step()):
            blocks: list[list[int]] = []
            for g, group in enumerate(self.groups):
                found: list[int | None] = []
                for position in group.positions_to_resume(n):
                    block_hash = self.hash_at(request, group, position, unit)
                    found.append(None if block_hash is None else self.find(g, block_hash))
                if None in found:
                    break
                start = group.positions_to_resume(n).start
                hit = [0] * start + [b for b in found if b is not None]
                blocks.append(hit[: n // group.block_size])
            else:
                return n, blocks
        return 0, [[] for _ in self.groups]

    def take(self, n: int) -> list[int]:
        blocks, self.free = self.free[:n], self.free[n:]
        for block in blocks:
            self.index = [entry for entry in self.index if entry[2] != block]
            self.count[block] = 1
        return blocks

    def give_back(self, blocks: list[int]) -> None:
        """In the order of giving up: without content to the front, with content to the back."""
        front: list[int] = []
        back: list[int] = []
        for block in blocks:
            if block:
                self.count[block] -= 1
                if not self.count[block]:
                    (back if any(entry[2] == block for entry in self.index) else front).append(block)
        self.free = front + self.free + back

    def allocate(
        self,
        request: TokenRequest,
        new: int,
        unit: int,
        hit: tuple[int, list[list[int]]] | None = None,
        lookahead: int = 0,
        external: int = 0,
        delay: bool = False,
        whole: bool = False,
        reserved: int = 0,
        others_run: bool = True,
    ) -> list[list[int]] | None:
        hit_tokens, hits = hit or (0, [[] for _ in self.groups])
        admitting = request.request_id not in self.tables
        watermark = self.watermark_blocks if others_run and request.status.name in ("WAITING", "PREEMPTED") else 0
        before = request.num_computed_tokens + hit_tokens + external

        def need(slots: int, capped: bool) -> int:
            total = 0
            for g, group in enumerate(self.groups):
                size = group.block_size
                required = -(-slots // size)
                if capped and group.kind != "full":
                    held = group.reach - (group.kind == "sliding") + self.in_flight
                    most = -(-min(held, self.max_model_len) // size) + (group.kind == "sliding")
                    required = min(required, most)
                table = self.tables.get(request.request_id, [[]] * len(self.groups))[g]
                gone = group.first_needed(before) // size if admitting else 0
                total += max(0, required - max(gone, len(table) + len(hits[g])))
                total += sum(1 for b in hits[g][gone:] if b and not self.count[b])
            return total

        if whole and need(min(request.num_tokens, self.max_model_len), True) + watermark > len(self.free):
            return None
        if not admitting:
            self.leave_window(request.request_id, before - request.num_in_flight_tokens)
        slots = min(before + new + lookahead, self.max_model_len)
        if need(slots, False) + watermark > len(self.free) - reserved:
            return None
        tables = self.tables.setdefault(request.request_id, [[] for _ in self.groups])
        cached = self.cached.setdefault(request.request_id, [0] * len(self.groups))
        if admitting and (hit_tokens or external):
            for g, group in enumerate(self.groups):
                gone = group.first_needed(before) // group.block_size
                adopted = [0] * gone + hits[g][gone:]
                for block in adopted:
                    if block:
                        self.count[block] += 1
                        if block in self.free:
                            self.free.remove(block)
                tables[g] += adopted
                cached[g] = len(adopted)
            for g, group in enumerate(self.groups):
                tables[g] += self.take(max(0, -(-before // group.block_size) - len(tables[g])))
        result = []
        for g, group in enumerate(self.groups):
            result.append(self.take(max(0, -(-slots // group.block_size) - len(tables[g]))))
            tables[g] += result[-1]
        if not delay:
            self.cache(request, min(before + new, request.num_tokens), unit)
        return result

    def cache(self, request: TokenRequest, n: int, unit: int) -> None:
        if not self.caching:
            return
        for g, group in enumerate(self.groups):
            reach = n
            if len(self.groups) > 1:
                floor = n // self.step() * self.step()
                reach = min(n, floor + group.block_size) if group.drop and floor else floor
            first = self.cached[request.request_id][g]
            for position in range(first, reach // group.block_size):
                block = self.tables[request.request_id][g][position]
                block_hash = self.hash_at(request, group, position, unit)
                if block and block_hash is not None and self.is_kept(request, group, position):
                    self.index.append((g, block_hash, block))
            self.cached[request.request_id][g] = max(first, reach // group.block_size)

    def is_kept(self, request: TokenRequest, group: NaiveGroup, position: int) -> bool:
        """Whether some point at which retention lets a hit end needs the block."""
        if group.kind != "sliding" or self.retention is None:
            return True
        points = [request.num_prompt_tokens - 1, request.shared_prefix_boundary]
        if self.retention:
            points += range(self.retention, self.max_model_len + group.reach + self.retention, self.retention)
        return any(position in group.positions_to_resume(n // self.step() * self.step()) for n in points)

    def leave_window(self, request_id: str, processed: int) -> None:
        for g, group in enumerate(self.groups):
            table = self.tables[request_id][g]
            gone = min(group.first_needed(max(0, processed)) // group.block_size, len(table))
            leaving = [block for block in table[:gone] if block]
            table[:gone] = [0] * gone
            self.give_back(leaving[::-1])

    def release(self, request_id: str) -> None:
        for table in self.tables.pop(request_id, []):
            self.give_back(table[::-1])
        self.cached.pop(request_id, None)

    def evict(self, blocks: set[int]) -> None:
        """Content goes, the place in the queue stays."""
        self.index = [entry for entry in self.index if entry[2] not in blocks]

    def reset(self) -> bool:
        if len(self.free) < self.num_blocks - 1:
            return False
        self.index = []
        return True

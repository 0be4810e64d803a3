"""Explain a trace: replay it with miss reasons, find where prompts part, replay what would help, draw the curve."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

import numpy as np

from kvblocks.errors import UsageError
from kvblocks.explain.advice import Change, Variant, changes, ranked
from kvblocks.explain.collect import Collector, Group
from kvblocks.explain.curve import curve_of, has_chains, read_chains, replayed_curve
from kvblocks.explain.divergence import Template, Tokens, common, learn
from kvblocks.explain.result import Explanation, Prefix, Side, SizeCurve, reason_shares, times
from kvblocks.explain.rewrite import OpenTrace, prompts_of
from kvblocks.observe import Reason
from kvblocks.replay import MAX_BLOCKS, ReplaySettings, RunResult, replay
from kvblocks.replay.chains import Chains
from kvblocks.traces import TraceRequest

MOST_PREFIXES = 10
"""Prefixes that are told, those with most missed tokens."""
MOST_ALIKE = 3
"""Of these, so many with the same reason; `first_seen`, which has most to tell, fills up the rest."""
MOST_COMPARED = 40
"""Places where prompts part that are looked at."""
MOST_TEMPLATES = 3
"""Places where prompts part for which a cure is replayed."""
SHARED_TOKENS, SIDE_TOKENS = 24, 24
"""Tokens of text that are shown before and after a divergence."""
CURVE_SHARES = (0.25, 0.5, 1.0, 2.0, 4.0)
"""Sizes of a curve of replays, in shares of the cache's."""

Decode = Callable[[Sequence[int]], str]
Progress = Callable[[str, int], None]


def explain(
    open_trace: OpenTrace,
    num_blocks: int | None,
    settings: ReplaySettings,
    *,
    advice: bool = True,
    variants: Sequence[Variant] = (),
    decode: Decode | None = None,
    on_progress: Progress | None = None,
) -> Explanation:
    """Why prompts missed, and what would help.

    open_trace: gives the requests from the start, each time it is called; it is called for every replay.
    num_blocks: the cache, the null block included; None takes one that never evicts, so that the reasons are those of
        the prompts alone.
    variants: other flags for the same model, to be tried where the reasons suggest it.
    decode: token ids to text, for traces that have text.
    on_progress: called with what is being done and how many requests that has come to.

    Raises UsageError for a cache without a usable block, TraceError for a trace that cannot be read.
    """
    tell = _Progress(on_progress)
    chains: Chains | None = None
    if has_chains(settings):
        tell.stage("reading")
        chains = read_chains(tell.counted(open_trace), settings)
    never_evicts = num_blocks is None
    if num_blocks is None:
        if chains is None:
            raise UsageError("num_blocks is needed for a cache of several groups")
        num_blocks = min(max(chains.largest, 2), MAX_BLOCKS)
    tell.stage("replay")
    collectors: list[Collector] = []

    def observe(_: int, clock: Callable[[], float]) -> Collector:
        collectors.append(Collector(clock))
        return collectors[-1]

    run = _only(open_trace, num_blocks, settings, tell, observe)
    collector = collectors[0]
    cost = settings.cost
    missed = {reason: np.array(tokens, dtype=np.int64) for reason, tokens in collector.missed.items()}
    computed = sum(missed.values(), np.zeros(len(collector.hits), dtype=np.int64))
    shares = reason_shares(missed, computed, sum(collector.hits) + int(computed.sum()), cost)
    tell.stage("prompts")
    prefixes, templates = _prefixes(open_trace, *collector.groups(MOST_COMPARED), settings, decode)
    found = Explanation(
        run=run,
        capacity_tokens=int((num_blocks - 1) * settings.tokens_per_block),
        never_evicts=never_evicts,
        reasons=shares,
        gpu_s=sum(share.gpu_s for share in shares),
        saved_gpu_s=run.hit_tokens / cost.prefill_tokens_per_s,
        ttft_s=times(computed, cost),
        again_tokens=collector.again_tokens,
        prefixes=prefixes,
        advice_wanted=advice,
    )
    replayed = {num_blocks: run.hit_rate} if settings.serial and not run.rejected else {}
    if advice:
        todo = list(changes(open_trace, num_blocks, settings, shares, templates, variants))
        for number, change in enumerate(todo, 1):
            tell.stage(f"trying {number} of {len(todo)}: {change.words}")
            result = _only(change.open_trace, change.num_blocks, change.settings, tell)
            found.tried.append(change.judge(result, run))
            if _is_size(change) and settings.serial and not result.rejected:
                replayed[change.num_blocks] = result.hit_rate
        found.advice = ranked(found.tried)
    tell.stage("curve")
    if chains is not None and chains.prompts:
        found.curve = _checked_curve(open_trace, chains, num_blocks, settings, replayed, tell)
    elif chains is None:
        sizes = {max(2, round(num_blocks * share)) for share in CURVE_SHARES} - replayed.keys()
        runs = replay(
            open_trace, sorted(size for size in sizes if size <= MAX_BLOCKS), settings, on_progress=tell.replayed
        ).runs
        replayed |= {one.num_blocks: one.hit_rate for one in runs if not one.rejected}
        if len(replayed) > 1:
            found.curve = replayed_curve(replayed)
    return found


def _only(
    open_trace: OpenTrace,
    num_blocks: int,
    settings: ReplaySettings,
    tell: _Progress,
    observe: Callable[[int, Callable[[], float]], Collector] | None = None,
) -> RunResult:
    found = replay(open_trace, [num_blocks], settings, observe=observe, on_progress=tell.replayed)
    if found.interrupted:
        raise KeyboardInterrupt  # part of a replay says nothing beside a whole one
    return found.runs[0]


def _is_size(change: Change) -> bool:
    return change.kind == "cache_size"


def _checked_curve(
    open_trace: OpenTrace,
    chains: Chains,
    num_blocks: int,
    settings: ReplaySettings,
    replayed: dict[int, float],
    tell: _Progress,
) -> SizeCurve:
    """The curve, checked where there are replays, and at the size where it flattens."""
    curve = curve_of(chains, num_blocks, replayed, outputs=settings.outputs)
    if curve.flat_from is not None and curve.flat_from not in replayed and curve.flat_from <= MAX_BLOCKS:
        serial = replace(settings, serial=True)
        replayed[curve.flat_from] = _only(open_trace, curve.flat_from, serial, tell).hit_rate
        curve = curve_of(chains, num_blocks, replayed, outputs=settings.outputs)
    return curve


# -- Where prompts part ---------------------------------------------------------------------------------------------


Prompts = dict[int, tuple[TraceRequest, Tokens]]


def _prefixes(
    open_trace: OpenTrace,
    first_seen: Sequence[Group],
    others: Sequence[Group],
    settings: ReplaySettings,
    decode: Decode | None,
) -> tuple[list[Prefix], list[Template]]:
    """The costliest places, with their text where there is any, and what prompts that part there have in common."""
    seen: dict[Reason, int] = {}
    shown: list[Group] = []
    for group in others:
        seen[group.reason] = seen.get(group.reason, 0) + 1
        if seen[group.reason] <= MOST_ALIKE:
            shown.append(group)
    numbers = {
        number
        for group in [*first_seen, *shown]
        for example in group.chosen()
        for number in (example.number, example.other)
        if number is not None
    }
    prompts = prompts_of(open_trace, numbers)
    places = _places(first_seen, prompts)
    templates = [template for _, template in places if template is not None]
    both = sorted([*places, *((group, None) for group in shown)], key=lambda place: -place[0].tokens)
    rows = [_prefix(group, template, prompts, settings, decode) for group, template in both[:MOST_PREFIXES]]
    return rows, templates[:MOST_TEMPLATES]


def _places(groups: Sequence[Group], prompts: Prompts) -> list[tuple[Group, Template | None]]:
    """The groups with what their prompts have in common. Those that part at different places of something that
    differs (at another of some tools that come in any order) are one."""
    places: list[tuple[Group, Template | None]] = []
    for group in groups:
        template = _template(group, prompts)
        same = None
        if template is not None:
            same = next((i for i, (_, other) in enumerate(places) if other and other.ends_like(template)), None)
        if same is None:
            places.append((group, template))
        else:
            joined, _ = places[same]
            joined.take(group)
            places[same] = (joined, _template(joined, prompts))
    return sorted(places, key=lambda place: -place[0].tokens)


def _template(group: Group, prompts: Prompts) -> Template | None:
    chosen = [example for example in group.chosen() if example.number in prompts and example.other in prompts]
    others = [example.other for example in chosen if example.other is not None]
    if not others:
        return None
    first = max(set(others), key=lambda number: (others.count(number), -number))
    numbers = dict.fromkeys([first, *(example.number for example in chosen), *others])
    return learn([prompts[number][1] for number in numbers if len(prompts[number][1])])


def _prefix(
    group: Group,
    template: Template | None,
    prompts: Prompts,
    settings: ReplaySettings,
    decode: Decode | None,
) -> Prefix:
    shared, sides = ("", ()) if decode is None else _text(group, prompts, decode)
    blocks = sorted(group.more_blocks)
    return Prefix(
        reason=group.reason,
        start=group.first,
        last_start=group.last,
        requests=group.requests,
        tokens=group.tokens,
        gpu_s=group.tokens / settings.cost.prefill_tokens_per_s,
        same_again_tokens=0 if template is None else template.same_again_tokens,
        shared_text=shared,
        sides=sides,
        more_blocks=blocks[len(blocks) // 2] if blocks else None,
    )


def _text(group: Group, prompts: Prompts, decode: Decode) -> tuple[str, tuple[Side, ...]]:
    """The text before a divergence, and after it on both sides; of other misses, where they begin."""
    for example in group.examples:
        if example.number not in prompts:
            continue
        request, mine = prompts[example.number]
        other = None if example.other is None else prompts.get(example.other)
        if request.token_ids is None or (other is not None and other[0].token_ids is None):
            continue
        at = min(example.position, len(mine))
        both = [(request, mine)] if other is None else [other, (request, mine)]
        if other is not None and group.reason == "first_seen":
            at = common(mine, other[1])
        shared = decode([int(token) for token in mine[max(0, at - SHARED_TOKENS) : at]])
        sides = (
            Side(name.request_id, decode([int(token) for token in tokens[at : at + SIDE_TOKENS]]))
            for name, tokens in both
        )
        return shared, tuple(sides)
    return "", ()


class _Progress:
    """Counts requests over the passes of an explanation."""

    def __init__(self, on_progress: Progress | None) -> None:
        self._tell = on_progress or (lambda stage, done: None)
        self._stage = ""

    def stage(self, name: str) -> None:
        self._stage = name
        self._tell(name, 0)

    def replayed(self, _: int, done: int) -> None:
        self._tell(self._stage, done)

    def counted(self, open_trace: OpenTrace) -> OpenTrace:
        def requests() -> Iterator[TraceRequest]:
            for number, request in enumerate(open_trace()):
                if not number % 64:
                    self._tell(self._stage, number)
                yield request

        return requests

"""One start of an engine, collected line by line."""

from __future__ import annotations

import re
from typing import Any

from kvblocks.sizing.logs.arguments import flags_of
from kvblocks.sizing.logs.convert import MAX_TEXT, content_of, distinct, fact_of, gib_of, refusal_of, without_secrets
from kvblocks.sizing.logs.facts import (
    AutoFit,
    CacheSize,
    Fact,
    LayerPadding,
    Override,
    Rank,
    Start,
    StartupLog,
    Status,
    release_of,
)
from kvblocks.sizing.logs.forms import Match, usage_terms, whole
from kvblocks.sizing.logs.values import read_keywords, read_mapping

_STAGES = {
    **dict.fromkeys(("version", "banner-model"), 0),
    "arguments": 1,
    "engine": 2,
    **dict.fromkeys(("architecture", "max-model-len", "batched-tokens", "block-size", "mamba-padding"), 2),
}
"""How far a start has come when it prints a form; all others come after the model began to load (3)."""

_OPENERS = ("version", "arguments", "engine")
_REPEATED = ("weights", "available", "budget", "reserved")
_TERMS = (
    "total",
    "free",
    "utilization",
    "budget",
    "weights",
    "consumed",
    "non_torch",
    "activation",
    "graphs_estimated",
)
_DATA_PARALLEL = re.compile(r"DP\d")
_MAX_ERRORS = 20
_MAX_FACTS = 4096


class StartBuilder:
    """Takes the forms of one start in order; `build` gives the facts."""

    def __init__(self, first_line: int) -> None:
        self.first_line = self.last_line = first_line
        self._stage = -1
        self._seen: dict[tuple[str, str], str] = {}
        self._facts: dict[str, Fact[Any]] = {}
        self._ranks: dict[str, dict[str, Fact[Any]]] = {}
        self._caches: list[dict[str, Any]] = []
        self._lists: dict[str, list[Fact[Any]]] = {"block-size": [], "layer-padding": [], "refusal": [], "error": []}
        self._lines: dict[str, Any] = {}

    @property
    def is_complete(self) -> bool:
        """Whether it states how big the cache is, or why there is none."""
        return bool(self._lists["refusal"]) or any({"tokens", "num_blocks"} & cache.keys() for cache in self._caches)

    @property
    def has_numbers(self) -> bool:
        """Whether it states memory, a concurrency or an error."""
        return bool(self._ranks or self._caches or self._lists["error"])

    def begins_another(self, match: Match, process: str) -> bool:
        """Whether this form, after those taken, can only be of a new start.

        A start prints its version, its arguments and its engine's config in this order, before any weights. Several
        engines of one start (data parallel) print a config each; ranks print the same lines once each.
        """
        name = match.name
        known = self._seen.get((name, process))
        if name in _OPENERS:
            if self._stage >= 3:
                same_name = self._seen.get((name, process.partition(" pid=")[0]))
                return name != "engine" or same_name is not None or not _DATA_PARALLEL.search(process)
            if name == "engine":
                return False
            if self._stage == 2 and ("engine", "") in self._seen:
                return True
            before = self._seen.get((name, ""))
            return before is not None and before != content_of(match)
        return name in _REPEATED and self.is_complete and known is not None

    def take(self, match: Match, line: int, process: str) -> None:
        """Take one form. Errors after start-up are of requests and are left out."""
        if match.name == "error" and "ready" in self._facts:
            return
        self.last_line = line
        self._stage = max(self._stage, _STAGES.get(match.name, 3))
        if len(self._seen) < _MAX_FACTS:
            for who in (process, process.partition(" pid=")[0], ""):
                self._seen[match.name, who] = content_of(match)
        taker = getattr(self, "_take_" + match.name.partition("-")[0], None)
        if match.name.startswith("refusal-"):
            self._take_refusal(match, line, process)
        elif taker is not None:
            taker(match, line, process)
        else:
            self._take_terms(match, line, process)

    def start(self, number: int) -> Start:
        """This start among those of the file."""
        version, model = self._facts.get("version"), self._model()
        return Start(
            number,
            self.first_line,
            self.last_line,
            self._status(),
            version.value if version else None,
            model.value if model else None,
        )

    def build(self, source: str, lines_read: int, start: Start, starts: tuple[Start, ...]) -> StartupLog:
        """The facts."""
        facts = self._facts
        arguments, config, version = facts.get("arguments"), facts.get("config"), facts.get("version")
        flags, stated, refused = flags_of(
            arguments.value if arguments else {},
            config.value if config else {},
            self._lines,
            release_of(version.value) if version else None,
        )
        return StartupLog(
            source=source,
            lines_read=lines_read,
            start=start,
            starts=starts,
            version=version,
            engine=facts["engine"].value if "engine" in facts else None,
            model=self._model(),
            architecture=facts.get("architecture"),
            arguments=arguments,
            config=config,
            flags=flags,
            stated=stated,
            not_understood=refused,
            max_model_len=self._length(),
            ranks=tuple(Rank(name=name, **terms) for name, terms in self._ranks.items()),
            caches=tuple(CacheSize(**cache) for cache in self._caches),
            block_sizes=distinct(self._lists["block-size"]),
            mamba_padding=facts.get("mamba-padding"),
            layer_padding=distinct(self._lists["layer-padding"]),
            override=facts.get("override"),
            context_parallel=facts.get("context-parallel"),
            auto_fit=facts.get("auto-fit"),
            refusals=distinct(self._lists["refusal"]),
            errors=distinct(self._lists["error"]),
            ready=facts.get("ready"),
        )

    def _status(self) -> Status:
        if self._lists["refusal"]:
            return "refused"
        if any({"tokens", "num_blocks"} & cache.keys() for cache in self._caches):
            return "ready"
        return "failed" if self._lists["error"] else "unfinished"

    def _model(self) -> Fact[str] | None:
        """The model: of the engine's config, else of the banner, else of the arguments."""
        for name in ("config", "model", "arguments"):
            fact = self._facts.get(name)
            if fact is None:
                continue
            if name == "model":
                return fact
            value = fact.value.get("model") or fact.value.get("model_tag")
            if isinstance(value, str):
                return Fact(value, fact.line, fact.text, fact.process)
        return None

    def _length(self) -> Fact[int] | None:
        """`max_model_len` as it ends up: of the concurrency, an automatic fit, a refusal, the line that states it."""
        for cache in reversed(self._caches):
            if "length" in cache:
                found: Fact[int] = cache["length"]
                return found
        fit: Fact[AutoFit] | None = self._facts.get("auto-fit")
        if fit is not None:
            return Fact(fit.value.after, fit.line, fit.text, fit.process)
        for fact in self._lists["refusal"]:
            if fact.value.max_model_len is not None:
                return Fact(fact.value.max_model_len, fact.line, fact.text, fact.process)
        if "max-model-len" in self._facts:
            return self._facts["max-model-len"]
        for name, key in (("config", "max_seq_len"), ("arguments", "max_model_len")):
            given = self._facts.get(name)
            tokens = given.value.get(key) if given else None
            if given and isinstance(tokens, int) and tokens > 0:
                return Fact(tokens, given.line, given.text, given.process)
        return None

    # Each takes the forms whose name begins like it.

    def _take_version(self, match: Match, line: int, process: str) -> None:
        self._facts.setdefault("version", fact_of(match.groups["version"], match, line, process))
        if "model" in match.groups:
            self._facts.setdefault("model", fact_of(match.groups["model"], match, line, process))

    def _take_banner(self, match: Match, line: int, process: str) -> None:
        self._facts.setdefault("model", fact_of(match.groups["model"], match, line, process))

    def _take_arguments(self, match: Match, line: int, process: str) -> None:
        if "mapping" in match.groups:
            given = read_mapping(match.groups["mapping"])
        else:
            given = read_keywords(match.groups["keywords"])
        self._facts["arguments"] = fact_of(without_secrets(given), match, line, process)

    def _take_engine(self, match: Match, line: int, process: str) -> None:
        self._facts["version"] = fact_of(match.groups["version"], match, line, process)
        self._facts["engine"] = fact_of(match.groups.get("engine", "V0"), match, line, process)
        self._facts["config"] = fact_of(read_keywords(match.groups["keywords"]), match, line, process)

    def _take_architecture(self, match: Match, line: int, process: str) -> None:
        self._facts.setdefault("architecture", fact_of(match.groups["architecture"], match, line, process))

    def _take_max(self, match: Match, line: int, process: str) -> None:
        # The target model's line comes first, that of a draft model after it.
        self._facts.setdefault("max-model-len", fact_of(whole(match.groups["tokens"]), match, line, process))

    def _take_batched(self, match: Match, line: int, process: str) -> None:
        self._lines.setdefault("max_num_batched_tokens", whole(match.groups["tokens"]))

    def _take_block(self, match: Match, line: int, process: str) -> None:
        self._append("block-size", fact_of(whole(match.groups["tokens"]), match, line, process))

    def _take_mamba(self, match: Match, line: int, process: str) -> None:
        self._facts.setdefault("mamba-padding", fact_of(float(match.groups["percent"]), match, line, process))

    def _take_layer(self, match: Match, line: int, process: str) -> None:
        value = LayerPadding(whole(match.groups["layers"]), float(match.groups["percent"]))
        self._append("layer-padding", fact_of(value, match, line, process))

    def _take_override(self, match: Match, line: int, process: str) -> None:
        value = Override(whole(match.groups["profiled"]), whole(match.groups["blocks"]))
        if value.profiled:  # 0: the small cache that some versions set up only to measure CUDA graphs
            self._facts.setdefault("override", fact_of(value, match, line, process))
            self._lines.setdefault("num_gpu_blocks_override", value.blocks)

    def _take_context(self, match: Match, line: int, process: str) -> None:
        self._facts.setdefault("context-parallel", fact_of(whole(match.groups["ranks"]), match, line, process))

    def _take_auto(self, match: Match, line: int, process: str) -> None:
        before = whole(match.groups["before"])
        after = whole(match.groups["after"]) if "after" in match.groups else before
        given = match.groups.get("available")
        self._facts["auto-fit"] = fact_of(
            AutoFit(before, after, gib_of(given) if given else None), match, line, process
        )

    def _take_blocks(self, match: Match, line: int, process: str) -> None:
        blocks = fact_of(whole(match.groups["blocks"]), match, line, process)
        self._add_cache({"device": match.groups["device"].upper(), "num_blocks": blocks})

    def _take_tokens(self, match: Match, line: int, process: str) -> None:
        tokens = fact_of(whole(match.groups["tokens"]), match, line, process)
        self._add_cache({"device": match.groups["device"], "tokens": tokens})

    def _take_concurrency(self, match: Match, line: int, process: str) -> None:
        value = {
            "concurrency": fact_of(float(match.groups["concurrency"]), match, line, process),
            "length": fact_of(whole(match.groups["length"]), match, line, process),
        }
        for cache in reversed(self._caches):
            named = cache.get("tokens") or cache.get("num_blocks")
            if named is not None and named.process == process and "concurrency" not in cache:
                cache.update(value)
                return
        self._add_cache(value)

    def _take_error(self, match: Match, line: int, process: str) -> None:
        refusals = self._lists["refusal"]
        if refusals and refusals[-1].line == line:
            return  # the same words, already read
        if len(self._lists["error"]) < _MAX_ERRORS:
            text = f"{match.groups['kind']}: {match.groups['message']}"[:MAX_TEXT].rstrip()
            self._append("error", fact_of(text, match, line, process))

    def _take_ready(self, match: Match, line: int, process: str) -> None:
        seconds = match.groups.get("seconds")
        self._facts.setdefault("ready", fact_of(float(seconds) if seconds else None, match, line, process))

    def _take_refusal(self, match: Match, line: int, process: str) -> None:
        self._append("refusal", fact_of(refusal_of(match), match, line, process))

    def _take_terms(self, match: Match, line: int, process: str) -> None:
        """Memory of one rank."""
        terms = self._ranks.get(process)
        if terms is None:
            if len(self._ranks) >= _MAX_FACTS:
                return
            terms = self._ranks[process] = {}
        groups = dict(match.groups)
        unit = groups.pop("unit", "GiB")
        for name, text in ({**groups, **usage_terms(groups.pop("terms", ""))}).items():
            if name == "terms":
                continue
            value: Any = float(text) if name == "utilization" else gib_of(text, unit)
            terms[name] = fact_of(value, match, line, process)
            if name == "utilization" and 0 < value <= 1:
                self._lines.setdefault("gpu_memory_utilization", value)

    def _add_cache(self, value: dict[str, Any]) -> None:
        if len(self._caches) < _MAX_FACTS:
            self._caches.append(value)

    def _append(self, name: str, fact: Fact[Any]) -> None:
        if len(self._lists[name]) < _MAX_FACTS:
            self._lists[name].append(fact)

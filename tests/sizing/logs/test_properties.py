"""Any numbers are read back from every form, and nothing but UsageError comes out of garbage."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from kvblocks.errors import UsageError
from kvblocks.sizing.logs import PlanNumbers, StartupLog, check, compare_with_plan, explain, read_log
from kvblocks.sizing.logs.forms import FORMS
from kvblocks.sizing.logs.values import read_keywords, read_mapping, read_value
from tests.sizing.logs.eras import ERAS, Numbers, refusal

GIB = st.integers(-99_99, 999_99).map(lambda n: f"{n / 100:.2f}")
COUNT = st.integers(1, 10**9)
NUMBERS = st.builds(
    Numbers,
    model=st.text(st.characters(codec="ascii", categories=("L", "N")), min_size=1).map(lambda name: f"org/{name}"),
    length=COUNT,
    tokens=st.integers(1, 10**8).map(lambda n: n * 16),
    concurrency=st.integers(0, 10**7).map(lambda n: f"{n / 100:.2f}"),
    weights=GIB.filter(lambda text: not text.startswith("-")),
    available=GIB,
    graphs=GIB,
    batched=COUNT,
)


@given(NUMBERS, st.sampled_from(sorted(ERAS)))
def test_any_numbers_are_read_back_from_every_era(n: Numbers, version: str) -> None:
    log = read_log(ERAS[version](n))
    assert log.cache is not None
    assert log.cache.concurrency is not None
    assert log.cache.length is not None
    assert f"{log.cache.concurrency.value:.2f}" == n.concurrency
    assert log.cache.length.value == n.length
    sizes = [fact.value for fact in (log.cache.tokens, log.cache.num_blocks) if fact]
    assert sizes == [n.tokens if log.cache.tokens else n.blocks]
    assert log.model is not None
    assert log.model.value == n.model
    rank = log.ranks[0]
    assert rank.weights is not None
    assert f"{rank.weights.value.gib:.2f}" == n.weights
    assert rank.graphs is not None
    assert f"{rank.graphs.value.gib:.2f}" == n.graphs.replace("-0.00", "0.00")
    if log.available:
        assert f"{log.available.value.gib:.2f}" == n.available
    everything(log)


@given(COUNT, GIB, GIB, st.none() | COUNT)
def test_any_refusal_is_read_back(length: int, needed: str, available: str, estimated: int | None) -> None:
    log = read_log([refusal(length, needed, available, estimated)])
    value = log.refusals[0].value
    assert (value.max_model_len, value.estimated) == (length, estimated)
    assert value.needed is not None
    assert value.available is not None
    assert (value.needed.gib, value.available.gib) == (float(needed), float(available))
    everything(log)


WORDS = st.sampled_from(
    [form.fragment for form in FORMS] + ["0", "-1", "1,0", "(", ")", "{", "'", "GiB", "=", "x", "\r"]
)
GARBAGE = st.lists(
    st.lists(WORDS | st.text(max_size=8), max_size=12).map("".join)
    | st.binary(max_size=60)
    | st.sampled_from([line for era in ERAS.values() for line in era(Numbers())])
    | st.sampled_from(FORMS).flatmap(lambda form: st.from_regex(form.pattern).map(lambda text: text[:2000])),
    max_size=12,
)


@settings(max_examples=300)
@given(GARBAGE)
def test_garbage_raises_nothing_but_usage_errors(lines: list[str | bytes]) -> None:
    try:
        log = read_log(lines)
    except UsageError:
        return
    everything(log)


@given(st.text(max_size=200))
def test_any_text_is_a_value(text: str) -> None:
    read_value(text)
    read_mapping(text)
    read_keywords(text)


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers(-(10**17), 10**17) | st.text(max_size=10),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
        max_leaves=10,
    )
)
def test_what_python_prints_is_read_back(value: object) -> None:
    """Escapes of unprintable characters stay as they are printed."""
    text = repr(value)
    if "\\x" not in text and "\\u" not in text and "\\U" not in text:
        assert read_value(text) == value


def everything(log: StartupLog) -> None:
    """All that can be asked of a log."""
    plan = PlanNumbers(
        num_blocks=8505,
        tokens=136080,
        max_concurrency=3.32,
        block_size=16,
        bytes_per_block=(2359296, 1179648),
        available_bytes=20 * 2**30,
        needed_bytes_max_len=6039797760,
        estimated_max_model_len=4096,
        max_model_len=log.max_model_len.value if log.max_model_len else 4096,
    )
    for finding in (*explain(log), *check(log), *compare_with_plan(log, plan), *compare_with_plan(log, PlanNumbers())):
        assert finding.text
        assert all(0 < line <= log.lines_read for line in finding.lines)
        str(finding)
        finding.to_dict()
    log.to_dict()

"""Where bytes come from: pipes that give little at a time, lines without end, files that break off."""

from __future__ import annotations

import gzip
import importlib.util
import json
import os
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from kvblocks.errors import MissingExtraError, TraceError, UsageError
from kvblocks.traces import formats, open_trace, open_traces
from kvblocks.traces import source as source_module

LINE = b'{"timestamp": 5, "input_length": 600, "output_length": 5, "hash_ids": [0, 1]}\n'


@contextmanager
def standard_input(monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    """The writing end of a pipe from which standard input reads."""
    read_end, write_end = os.pipe()
    with open(read_end) as reader:
        monkeypatch.setattr("sys.stdin", reader)
        yield write_end


def test_a_format_is_recognised_from_a_pipe_that_gives_one_byte_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    session = {"id": "x", "block_size": 64, "requests": [{"t": 0, "in": 65, "out": 1, "hash_ids": [1]}]}
    pretty = json.dumps(session, indent=1).encode()
    for data, name in ((LINE, "mooncake"), (gzip.compress(LINE), "mooncake"), (pretty, "kv-cache-tester")):
        with standard_input(monkeypatch) as write_end:

            def drip(data: bytes = data, write_end: int = write_end) -> None:
                for at in range(len(data)):
                    os.write(write_end, data[at : at + 1])
                os.close(write_end)

            writer = threading.Thread(target=drip)
            writer.start()
            with open_trace("-") as trace:
                assert trace.format == name
                assert len(list(trace)) == 1
                assert trace.bytes_read == len(data)
            writer.join()


def test_requests_of_a_live_pipe_come_while_it_is_open(monkeypatch: pytest.MonkeyPatch) -> None:
    with standard_input(monkeypatch) as write_end:
        os.write(write_end, LINE)
        with open_trace("-") as trace:
            requests = iter(trace)
            assert next(requests).num_prompt_tokens == 600
            os.write(write_end, LINE.replace(b"600", b"700"))
            assert next(requests).num_prompt_tokens == 700
            os.close(write_end)
            assert list(requests) == []


def test_a_line_that_is_too_long_is_one_bad_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(source_module, "MAX_LINE_BYTES", 1000)
    path = tmp_path / "trace"
    path.write_bytes(LINE + b"x" * 5000 + b"\n" + LINE)
    with open_trace(str(path)) as trace, pytest.raises(TraceError, match=r"trace:2: is longer than 1,000 bytes"):
        list(trace)
    with open_trace(str(path), skip_bad_lines=True) as trace:
        assert [r.request_id for r in trace] == ["1", "3"]
        assert trace.skipped.count == 1


def test_what_stands_before_the_end_of_a_cut_gzip_is_read_first(tmp_path: Path) -> None:
    path = tmp_path / "trace.gz"
    path.write_bytes(gzip.compress(LINE * 100_000)[:-10])
    read = 0
    with open_trace(str(path)) as trace, pytest.raises(TraceError, match="the gzip stream ends early"):  # noqa: PT012
        for _ in trace:
            read += 1
    assert read > 1000


def test_a_trace_is_read_once(tmp_path: Path) -> None:
    path = tmp_path / "trace"
    path.write_bytes(LINE)
    with open_trace(str(path)) as trace:
        assert len(list(trace)) == 1
        with pytest.raises(UsageError, match="a trace is read once; open it again"):
            iter(trace)


def test_more_sessions_than_a_process_may_open_files_are_merged(tmp_path: Path) -> None:
    resource = pytest.importorskip("resource")
    session = {"id": "x", "block_size": 64, "requests": [{"t": 0, "in": 65, "out": 1, "hash_ids": [1]}]}
    for i in range(200):
        (tmp_path / f"{i:03}.json").write_text(json.dumps(session))
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    open_now = max(map(int, os.listdir("/dev/fd")))
    resource.setrlimit(resource.RLIMIT_NOFILE, (open_now + 50, limits[1]))
    try:
        with open_traces([str(tmp_path)]) as trace:
            assert len(list(trace)) == 200
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)


def test_what_the_system_refuses_is_told_with_its_reason(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "trace"
    path.write_bytes(LINE)

    def refuse(*arguments: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(source_module, "open", refuse, raising=False)
    with pytest.raises(TraceError, match="cannot be opened: Permission denied; check the path and its permissions"):
        open_trace(str(path))
    monkeypatch.undo()
    monkeypatch.setattr(Path, "iterdir", refuse)
    with pytest.raises(TraceError, match="cannot be read: Permission denied"):
        open_traces([str(tmp_path)])
    with pytest.raises(TraceError, match="cannot be opened: embedded null byte"):
        open_trace("a\0b")


def test_a_missing_package_is_named_with_the_extra_that_brings_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "msgspec", None)
    spec = importlib.util.spec_from_file_location("formats_again", str(formats.__file__))
    assert spec is not None
    assert spec.loader is not None
    with pytest.raises(MissingExtraError, match=r"kvblocks\[cli\]"):
        spec.loader.exec_module(importlib.util.module_from_spec(spec))

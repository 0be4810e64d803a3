"""The page on traces: its example lines can be read (its commands run with those of all pages)."""

from __future__ import annotations

import re
from pathlib import Path

from kvblocks.traces import open_trace

PAGE = (Path(__file__).parents[2] / "docs" / "traces.md").read_text()


def test_the_example_lines_can_be_read(tmp_path: Path) -> None:
    (example,) = re.findall(r"```json\n(.*?)```", PAGE, re.DOTALL)
    path = tmp_path / "trace.jsonl"
    path.write_text(example)
    with open_trace(str(path), skip_bad_lines=True) as trace:
        assert len(list(trace)) == 2
        assert trace.skipped.count == 1
        assert "--tokenizer" in trace.skipped.examples[0]

"""Recorded traces: readers, one file per format, and the workload generator."""

from kvblocks.traces.describe import TraceSummary, describe
from kvblocks.traces.generate import KINDS, Workload, generate, write_trace
from kvblocks.traces.open import MergedTraces, open_trace, open_traces, trace_files
from kvblocks.traces.reader import Skipped, Trace
from kvblocks.traces.request import TraceRequest

__all__ = [
    "KINDS",
    "MergedTraces",
    "Skipped",
    "Trace",
    "TraceRequest",
    "TraceSummary",
    "Workload",
    "describe",
    "generate",
    "open_trace",
    "open_traces",
    "trace_files",
    "write_trace",
]

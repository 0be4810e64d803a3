"""The doctor of a trace: where its misses come from, what would help, and what each cache size would hit."""

from kvblocks.explain.advice import Variant
from kvblocks.explain.result import Advice, Explanation, Prefix, ReasonShare, SizeCurve
from kvblocks.explain.run import explain

__all__ = ["Advice", "Explanation", "Prefix", "ReasonShare", "SizeCurve", "Variant", "explain"]

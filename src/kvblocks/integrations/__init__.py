"""kvblocks inside other engines, one folder each."""

"""The memory of the cache: aliased groups, copies, and the traps of the debug mode."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from kvblocks.engine import SamplingParams
from kvblocks.errors import IntegrityError, UsageError
from kvblocks.manager import BlockCopy
from tests.engine.tiny import make, prompt, run


def test_the_layers_of_all_groups_share_one_memory() -> None:
    for kind in ("gemma2", "bamba"):
        engine = make(kind, debug=False)
        groups = engine.capacity.groups
        width = max(len(group.layers) for group in groups)
        assert engine.storage.nbytes == 200 * engine.capacity.stages[0].bytes_per_block
        assert engine.storage.nbytes == 200 * width * engine.storage.page_bytes
        first, second = groups[0].layers[0], groups[1].layers[0]
        storage = engine.storage
        memories: list[Any] = [
            storage.attention[layer.name] if layer.name in storage.attention else storage.states[layer.name][0]
            for layer in (first, second)
        ]
        assert np.shares_memory(memories[0], memories[1])


def test_a_copy_takes_all_layers() -> None:
    storage = make("llama").storage
    layers = list(storage.attention.values())
    for number, layer in enumerate(layers):
        layer[3] = number
    storage.copy([BlockCopy(3, 7)])
    assert all((layer[7] == number).all() for number, layer in enumerate(layers))


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_a_fresh_block_holds_no_numbers_in_debug_mode(dtype: str) -> None:
    storage = make("llama", kv_dtype=dtype).storage
    storage.poison([5])
    assert all(np.isnan(layer[[0, 5]]).all() for layer in storage.attention.values())


def test_reading_a_slot_that_nobody_wrote_is_noticed() -> None:
    engine = make("llama")
    engine.add(prompt(20), SamplingParams(max_tokens=4))
    engine.step()
    (table,) = (group.tables["request-0"] for group in engine.manager.groups)
    engine.storage.poison(table[:1])
    with pytest.raises(IntegrityError, match="never written"):
        engine.step()


def test_writing_into_the_null_block_is_noticed() -> None:
    engine = make("llama")
    next(iter(engine.storage.attention.values()))[0] = 1
    with pytest.raises(IntegrityError, match="null block"):
        run(engine, [prompt(5)])


def test_memory_too_small_for_a_request_is_refused_with_the_number_to_give() -> None:
    with pytest.raises(UsageError, match="give at least"):
        make("llama", num_blocks=None, kv_memory_bytes=100)


def test_the_memory_given_is_not_exceeded() -> None:
    engine = make("llama", num_blocks=None, kv_memory_bytes=100_000)
    assert 0 <= 100_000 - engine.storage.nbytes < engine.capacity.stages[0].bytes_per_block

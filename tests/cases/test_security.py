"""Public reports about prompts of one user found by another, as scenarios of ours."""

from __future__ import annotations

import subprocess
import sys

from kvblocks.prefix import ALGORITHMS, BlockHasher, ExtraKeys, LoRAKey, MultiModalItem
from tests.cases.scenario import cached


def test_bh027_a_salt_that_equals_an_adapter_s_name_is_another_key() -> None:
    adapter, salt = ExtraKeys(lora=LoRAKey("X")), ExtraKeys(cache_salt="X")
    hasher = BlockHasher(4)
    assert hasher.chain(range(1, 5), adapter) != hasher.chain(range(1, 5), salt)
    engine = cached(range(1, 9))
    engine.free(engine.admit(range(1, 9), adapter))
    assert engine.hit(range(1, 9), adapter).num_tokens == 4
    assert engine.hit(range(1, 9), salt).num_tokens == 0


def test_bh028_two_adapters_of_one_name_do_not_share() -> None:
    engine = cached(range(8))
    engine.free(engine.admit(range(8), ExtraKeys(lora=LoRAKey("n", adapter_id=1))))
    assert engine.hit(range(8), ExtraKeys(lora=LoRAKey("n", adapter_id=1))).num_tokens == 4
    assert engine.hit(range(8), ExtraKeys(lora=LoRAKey("n", adapter_id=2))).num_tokens == 0
    assert engine.hit(range(8), ExtraKeys(lora=LoRAKey("n", path="/other", adapter_id=1))).num_tokens == 0


def test_bh032_the_same_placeholders_for_two_images_are_two_contents() -> None:
    hasher, image = BlockHasher(4), 99
    prompt = [1, 2, 3, 4, 5, image, image, image, image, image, 6, 7]
    one, other = (
        hasher.chain(prompt, ExtraKeys(multimodal=(MultiModalItem(name, 5, 5),))) for name in ("image a", "image b")
    )
    assert [a == b for a, b in zip(one, other, strict=True)] == [True, False, False]


def test_bh033_an_item_enters_the_blocks_that_it_overlaps_and_only_those() -> None:
    def keys(first: str, second: str) -> ExtraKeys:
        return ExtraKeys(multimodal=(MultiModalItem(first, 2, 5), MultiModalItem(second, 9, 3)))

    both = keys("a", "b")
    names = [[name for name in (b"a", b"b") if name in both.for_block(at, at + 4)] for at in (0, 4, 8)]
    assert names == [[b"a"], [b"a"], [b"b"]]
    chain = BlockHasher(4).chain
    base, other_b, other_a = (chain([7] * 12, k) for k in (both, keys("a", "c"), keys("c", "b")))
    assert [x == y for x, y in zip(base, other_b, strict=True)] == [True, True, False]
    assert [x == y for x, y in zip(base, other_a, strict=True)] == [False, False, False]
    assert keys("c", "b").for_block(8, 12) == both.for_block(8, 12)  # the last block differs by its chain alone


def test_bh034_a_salt_isolates_and_enters_the_first_block_only() -> None:
    engine = cached(range(100, 104))
    s1, s2 = ExtraKeys(cache_salt="s1"), ExtraKeys(cache_salt="s2")
    engine.free(engine.admit(range(12), s1))
    assert [engine.hit(range(12), keys).num_tokens for keys in (s2, None, s1)] == [0, 0, 8]
    assert s1.for_block(0, 4) != b""
    assert s1.for_block(4, 8) == b""


def test_bh035_the_root_is_the_same_in_every_process_and_nobody_s_block() -> None:
    code = (
        "from kvblocks.prefix import ALGORITHMS, BlockHasher; print([BlockHasher(4, a).root.hex() for a in ALGORITHMS])"
    )
    roots = {
        subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
        for _ in range(2)
    }
    assert roots == {f"{[BlockHasher(4, a).root.hex() for a in ALGORITHMS]}\n"}
    assert BlockHasher(4).algorithm.name == "sha256"
    assert BlockHasher(4).algorithm.cryptographic
    # Block messages begin with a digest, the root's with a text: no user data can be hashed to the root.
    assert BlockHasher(4).root not in BlockHasher(4).chain(range(4000))


def test_bh036_the_hashes_for_an_external_store_tell_everything_apart() -> None:
    engine = cached(range(8))
    keys = [None, ExtraKeys(cache_salt="a"), ExtraKeys(cache_salt="b"), ExtraKeys(lora=LoRAKey("x"))]
    chains = [engine.request(range(8), k).block_hashes for k in keys]
    assert len({block_hash for chain in chains for block_hash in chain}) == 8

"""Block-hash chains: canonical, unambiguous, incremental."""

from __future__ import annotations

import hashlib
import struct
import subprocess
import sys
from array import array

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvblocks.errors import MissingExtraError, UsageError
from kvblocks.prefix import ALGORITHMS, BlockHasher, ExtraKeys, LoRAKey, MultiModalItem, PromptEmbeds

KEYS = ExtraKeys(
    lora=LoRAKey("sql", "/adapters/sql", 7),
    multimodal=(MultiModalItem("image-a", 2, 5),),
    cache_salt="tenant",
    prompt_embeds=PromptEmbeds(bytes(range(48)), 4),
)


def test_the_hashed_bytes_are_the_specified_ones() -> None:
    hasher = BlockHasher(4, seed="s")
    name, seed = b"sha256", b"s"
    root = hashlib.sha256(
        b"kvblocks block-hash chain 1\0" + struct.pack("<I", len(name)) + name + struct.pack("<I", len(seed)) + seed
    ).digest()
    assert hasher.root == root
    first = hashlib.sha256(root + struct.pack("<I4I", 4, 10, 11, 12, 13)).digest()
    second = hashlib.sha256(first + struct.pack("<I4I", 4, 14, 15, 16, 2**32 - 1)).digest()
    assert hasher.chain([10, 11, 12, 13, 14, 15, 16, 2**32 - 1, 5]) == [first, second]


def test_the_bytes_of_every_extra_key_are_the_specified_ones() -> None:
    def field(raw: bytes) -> bytes:
        return struct.pack("<I", len(raw)) + raw

    lora = b"\x01" + field(b"sql") + field(b"/adapters/sql") + struct.pack("<q", 7)
    rows = [field(hashlib.sha256(bytes(range(at, at + 16))).digest()) for at in (0, 16, 32)]
    assert KEYS.for_block(0, 4) == (
        lora + b"\x02" + field(b"image-a") + struct.pack("<q", 2) + b"\x03" + field(b"tenant") + b"\x04" + rows[0]
    )
    assert KEYS.for_block(4, 8) == lora + b"\x02" + field(b"image-a") + struct.pack("<q", -2) + b"\x04" + rows[1]
    assert KEYS.for_block(8, 12) == lora + b"\x04" + rows[2]
    assert KEYS.for_block(12, 16) == lora


@pytest.mark.parametrize(
    "algorithm, plain, keyed",
    [
        (
            "sha256",
            "cac4bffb6c758464802e4aa74810112db4ae67dc94b30edd93a10d4600c50e68",
            "762253297bd768796f55218f2b245a271c2c76d1783e65c63c94b777f85f1110",
        ),
        (
            "blake3",
            "4119eeac623382a28009d921548ab64031b57fab7d80ef56da5d8c497c71094d",
            "e9f10d71c87361ebf1a3d51182e3b9fe706847e50386a956640aafd9b1ca919d",
        ),
        (
            "xxh3_128",
            "211fc86a44192bf79ac60060e9759a37",
            "fadea3c673a6f901b501dd85c66e1b6c",
        ),
    ],
)
def test_golden_digests(algorithm: str, plain: str, keyed: str) -> None:
    """Written down once: a change here changes every hash that was ever stored or published."""
    hasher = BlockHasher(4, algorithm, seed="golden")
    assert hasher.chain(range(12))[-1].hex() == plain
    assert hasher.chain(range(12), KEYS)[-1].hex() == keyed


def test_digests_are_the_same_in_every_process() -> None:
    code = "from kvblocks.prefix import BlockHasher; print(BlockHasher(4).chain(range(8))[-1].hex())"
    outputs = {
        subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, check=True, env={"PYTHONHASHSEED": seed}
        ).stdout.strip()
        for seed in ("0", "1234", "random")
    }
    assert outputs == {BlockHasher(4).chain(range(8))[-1].hex()}


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_another_seed_or_algorithm_shares_no_digest(algorithm: str) -> None:
    chains = [BlockHasher(4, algorithm, seed).chain(range(16)) for seed in ("", "a", "b")]
    chains.append(BlockHasher(4, "sha256", "c").chain(range(16)))
    digests = [digest for chain in chains for digest in chain]
    assert len(set(digests)) == len(digests)


def test_only_full_blocks_are_hashed() -> None:
    hasher = BlockHasher(4)
    assert [len(hasher.chain(range(n))) for n in (0, 3, 4, 7, 8)] == [0, 0, 1, 1, 2]


@given(st.lists(st.integers(0, 2**32 - 1), max_size=60), st.lists(st.integers(1, 7), max_size=20), st.integers(1, 6))
def test_hashing_as_tokens_arrive_equals_hashing_at_once(tokens: list[int], steps: list[int], size: int) -> None:
    hasher = BlockHasher(size)
    hashes: list[bytes] = []
    seen = 0
    for step in [*steps, len(tokens)]:
        seen = min(len(tokens), seen + step)
        hasher.extend(hashes, tokens[:seen], KEYS)
    assert hashes == hasher.chain(tokens, KEYS)


def test_a_chain_that_was_cut_back_is_completed_again() -> None:
    hasher = BlockHasher(4)
    hashes = hasher.chain(range(20))
    whole = list(hashes)
    del hashes[2:]
    hasher.extend(hashes, range(20))
    assert hashes == whole


def test_a_finer_chain_agrees_with_a_coarser_one_on_what_is_shared() -> None:
    fine = BlockHasher(4)
    one, other = fine.chain(range(32)), fine.chain([*range(20), *range(100, 112)])
    shared = sum(a == b for a, b in zip(one, other, strict=True))
    assert shared == 5
    assert [a == b for a, b in zip(one[3::4], other[3::4], strict=True)] == [True, False]


@pytest.mark.parametrize("bad", [-1, 2**32, "7", 1.5, None])
def test_a_token_id_out_of_range_is_named(bad: object) -> None:
    hashes: list[bytes] = []
    with pytest.raises(UsageError, match=r"token_ids\[2\] is .*must be an integer from 0 to 4294967295"):
        BlockHasher(4).extend(hashes, [0, 1, bad, 3])  # type: ignore[list-item]
    assert hashes == []


@pytest.mark.parametrize(
    "tokens", [list(range(40)), tuple(range(40)), range(40), array("I", range(40)), array("q", range(40))]
)
def test_any_sequence_of_integers_hashes_alike(tokens: list[int]) -> None:
    assert BlockHasher(8).chain(tokens) == BlockHasher(8).chain(list(range(40)))


def test_a_numpy_array_hashes_like_a_list() -> None:
    numpy = pytest.importorskip("numpy")
    for dtype in ("uint32", "int64", "int32"):
        assert BlockHasher(8).chain(numpy.arange(40, dtype=dtype)) == BlockHasher(8).chain(range(40))


def test_unknown_names_and_sizes_are_refused_with_the_fix() -> None:
    with pytest.raises(UsageError, match="'md5' is unknown: choose one of sha256, blake3, xxh3_128"):
        BlockHasher(4, "md5")
    with pytest.raises(UsageError, match="block_size=0"):
        BlockHasher(0)


def test_a_missing_package_names_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "blake3", None)
    with pytest.raises(MissingExtraError, match=r"pip install 'kvblocks\[hash\]'"):
        BlockHasher(4, "blake3")


text = st.one_of(st.none(), st.text(max_size=4), st.sampled_from(["a", "b", "a\0", "\x01", "\ud800"]))
keys = st.builds(
    ExtraKeys,
    lora=st.one_of(
        st.none(), st.builds(LoRAKey, text.map(lambda t: t or ""), text.map(lambda t: t or ""), st.integers(0, 3))
    ),
    multimodal=st.lists(
        st.builds(MultiModalItem, st.sampled_from(["x", "y", ""]), st.integers(0, 9), st.integers(1, 6)), max_size=2
    ).map(tuple),
    cache_salt=text,
    prompt_embeds=st.one_of(
        st.none(), st.binary(min_size=2, max_size=16).map(lambda raw: PromptEmbeds(raw[: len(raw) // 2 * 2], 2))
    ),
)


@given(keys, keys, st.integers(0, 2), st.integers(0, 2))
def test_two_different_sets_of_keys_never_serialise_alike(one: ExtraKeys, other: ExtraKeys, a: int, b: int) -> None:
    """Compared with the parsed meaning: what applies to the block, field by field."""

    def meaning(keys: ExtraKeys, block: int) -> object:
        start, end = 4 * block, 4 * block + 4
        items = [
            (item.identifier, item.offset - start)
            for item in keys.multimodal
            if item.offset < end and item.offset + item.num_tokens > start
        ]
        embeds = keys.prompt_embeds.data[2 * start : 2 * end] if keys.prompt_embeds else b""
        return keys.lora, items, keys.cache_salt if block == 0 else None, embeds

    same_bytes = one.for_block(4 * a, 4 * a + 4) == other.for_block(4 * b, 4 * b + 4)
    assert same_bytes == (meaning(one, a) == meaning(other, b))


def test_tokens_and_keys_cannot_be_traded_for_each_other() -> None:
    """A block with a key never hashes like a longer run of tokens: the number of tokens is part of the message."""
    salt = ExtraKeys(cache_salt="abc")
    extra = salt.for_block(0, 4)
    padded = extra + b"\0" * (-len(extra) % 4)
    tokens = [1, 2, 3, 4, *struct.unpack(f"<{len(padded) // 4}I", padded)]
    assert BlockHasher(4).chain([1, 2, 3, 4], salt)[0] != BlockHasher(len(tokens)).chain(tokens)[0]


def test_nonsense_keys_are_refused() -> None:
    with pytest.raises(UsageError, match="multimodal item 'x': offset -1"):
        MultiModalItem("x", -1, 3)
    with pytest.raises(UsageError, match="not whole rows"):
        PromptEmbeds(b"abc", 2)

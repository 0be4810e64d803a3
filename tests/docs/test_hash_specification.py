"""The page on prefix caching specifies the hashed bytes: built from its tables alone, they give our digests."""

from __future__ import annotations

import hashlib
import re
import struct
from collections.abc import Callable
from pathlib import Path

import blake3
import pytest
import xxhash

from kvblocks.prefix import ALGORITHMS, BlockHasher, ExtraKeys, LoRAKey, MultiModalItem, PromptEmbeds

PAGE = (Path(__file__).parent.parent.parent / "docs" / "prefix-caching.md").read_text()
TAGS = {name: bytes([int(tag, 16)]) for name, tag in re.findall(r"^\| ([\w ]+) \| `(\d\d)` \|", PAGE, re.M)}
ROOT_TAG = re.findall(r"^\| tag \| `(.+)` and a zero byte \|$", PAGE, re.M)[0].encode() + b"\0"

HASHES: dict[str, Callable[[bytes], bytes]] = {
    "sha256": lambda data: hashlib.sha256(data).digest(),
    "blake3": lambda data: blake3.blake3(data).digest(),
    "xxh3_128": lambda data: xxhash.xxh3_128(data).digest(),
}

ROWS = bytes(range(100, 140))  # ten rows of four bytes: two and a half blocks
KEYS = {
    "none": ExtraKeys(),
    "an adapter": ExtraKeys(lora=LoRAKey("sql", "/adapters/sql", -7)),
    "an adapter without a path": ExtraKeys(lora=LoRAKey("sql")),
    "items": ExtraKeys(
        multimodal=(MultiModalItem("cat", 3, 2), MultiModalItem("dög", 4, 4), MultiModalItem("0", 9, 0))
    ),
    "a salt": ExtraKeys(cache_salt="tenant"),
    "an empty salt": ExtraKeys(cache_salt=""),
    "embeddings": ExtraKeys(prompt_embeds=PromptEmbeds(ROWS, 4)),
    "all": ExtraKeys(LoRAKey("ä", "b", 2**62), (MultiModalItem("cat", 2, 9),), "tenant", PromptEmbeds(ROWS, 4)),
}
TOKENS = [5, 0, 2**32 - 1, 7, 1, 2, 3, 4, 9, 8, 7, 6, 128_000, 65_536, 256]


def field(raw: bytes) -> bytes:
    """A `u32` length and so many bytes."""
    return struct.pack("<I", len(raw)) + raw


def records(keys: ExtraKeys, start: int, size: int) -> bytes:
    """What the page's table of records says about the block at token `start`."""
    found = b""
    if keys.lora is not None:
        found += TAGS["LoRA adapter"] + field(keys.lora.name.encode()) + field(keys.lora.path.encode())
        found += struct.pack("<q", keys.lora.adapter_id)
    for item in keys.multimodal:
        if item.offset < start + size and item.offset + item.num_tokens > start:  # begins before its end, ends after
            found += TAGS["multimodal item"] + field(item.identifier.encode()) + struct.pack("<q", item.offset - start)
    if keys.cache_salt is not None and start == 0:
        found += TAGS["cache salt"] + field(keys.cache_salt.encode())
    if keys.prompt_embeds is not None:
        width = keys.prompt_embeds.row_bytes
        rows = [keys.prompt_embeds.data[i * width : (i + 1) * width] for i in range(start, start + size)]
        if any(rows):
            found += TAGS["prompt embeddings"] + field(hashlib.sha256(b"".join(rows)).digest())
    return found


def test_the_page_has_a_tag_for_each_kind_of_record() -> None:
    assert sorted(TAGS) == ["LoRA adapter", "cache salt", "multimodal item", "prompt embeddings"]
    assert len(set(TAGS.values())) == len(TAGS)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize("seed", [b"", b"a seed", b"\xff\x00"])
@pytest.mark.parametrize("keys", KEYS.values(), ids=KEYS.keys())
def test_the_digests_are_those_of_the_specified_bytes(algorithm: str, seed: bytes, keys: ExtraKeys) -> None:
    digest, size = HASHES[algorithm], 4
    parent = digest(ROOT_TAG + field(algorithm.encode()) + field(seed))
    expected = []
    for start in range(0, len(TOKENS) - size + 1, size):
        block = TOKENS[start : start + size]
        parent = digest(parent + struct.pack(f"<I{size}I", size, *block) + records(keys, start, size))
        expected.append(parent)
    assert BlockHasher(size, algorithm, seed).chain(TOKENS, keys) == expected
    assert len(expected) == 3


def test_the_golden_digest_of_the_page_has_not_changed() -> None:
    """Written down here too: whoever changes the page with the code changes every hash that was ever published."""
    golden = "f3f3df5e79f2b8069f8133672c2c4be1eb399accadc0fff9aaad70b00c8d58e4"
    assert PAGE.count(golden) == 1


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_the_page_tells_how_long_the_digests_of_an_algorithm_are(algorithm: str) -> None:
    length = re.findall(rf"^\| `{algorithm}` \| (\d+) bytes \|", PAGE, re.M)
    assert length == [str(len(BlockHasher(1, algorithm).root))]

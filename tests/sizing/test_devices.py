"""Devices are found by the names that people write, and unknown ones are refused with the nearest."""

from __future__ import annotations

from typing import Any

import pytest

from kvblocks.errors import UsageError
from kvblocks.sizing.devices import DEVICES, GIB, device_of_memory, find_device


@pytest.mark.parametrize(
    ("given", "name"),
    [
        ("h100", "H100"),
        ("H100-80GB", "H100"),
        ("NVIDIA H100 80GB HBM3", "H100"),
        ("NVIDIA H100 PCIe", "H100-PCIe"),
        ("h100 nvl", "H100-NVL"),
        ("rtx 4090", "RTX 4090"),
        ("4090", "RTX 4090"),
        ("NVIDIA GeForce RTX 4090", "RTX 4090"),
        ("RTX_4090 24GB", "RTX 4090"),
        ("a100", "A100-80GB"),
        ("NVIDIA A100-SXM4-40GB", "A100-40GB"),
        ("A10G", "A10G"),
        ("Tesla T4", "T4"),
        ("Tesla V100-SXM2-32GB", "V100-32GB"),
        ("rtx 6000 ada", "RTX 6000 Ada"),
        ("NVIDIA RTX PRO 6000 Blackwell", "RTX PRO 6000"),
        ("dgx spark", "GB10"),
        ("NVIDIA GH200 480GB", "GH200"),
        ("AMD Instinct MI300X", "MI300X"),
        ("mi355x", "MI355X"),
    ],
)
def test_a_device_is_found_however_its_name_is_written(given: str, name: str) -> None:
    assert find_device(given).name == name


def test_every_device_is_found_by_its_own_name_and_by_all_its_aliases() -> None:
    for device in DEVICES:
        assert find_device(device.name) is device
        for alias in device.aliases:
            assert find_device(alias).total_bytes > 0


def test_an_unknown_device_is_refused_with_the_nearest_names() -> None:
    with pytest.raises(UsageError, match=r"gpu='h1000' is not .* nearest are .*H100"):
        find_device("h1000")
    with pytest.raises(UsageError, match="for another give its memory"):
        find_device("abacus")
    with pytest.raises(UsageError, match="must be the name of a GPU"):
        find_device("  ")


@pytest.mark.parametrize(
    ("given", "size"),
    [("80GiB", 80 * GIB), ("80 GB", 80 * 10**9), ("81559MiB", 81559 * 2**20), ("0.5TiB", 2**39), ("24g", 24 * 10**9)],
)
def test_a_size_stands_for_a_device_that_is_not_in_the_table(given: str, size: int) -> None:
    assert find_device(given).total_bytes == size
    assert device_of_memory(size).total_bytes == size


@pytest.mark.parametrize("given", ["80", "eighty", "", "-4GiB", "2000TiB", "80 parsecs", True])
def test_a_size_without_sense_is_refused_with_an_example(given: Any) -> None:
    with pytest.raises(UsageError, match=r"memory="):
        device_of_memory(given)


def test_the_reported_total_is_always_less_than_the_marketed_one() -> None:
    marketed = {"H100": 80, "A100-80GB": 80, "L40S": 48, "RTX 4090": 24, "H200": 141, "B200": 192, "T4": 16}
    for name, size in marketed.items():
        assert 0.9 * size < find_device(name).total_gib < size


def test_only_devices_that_share_their_memory_with_the_host_are_unified() -> None:
    assert {device.name for device in DEVICES if device.unified} == {"GB10", "MI300A"}

from __future__ import annotations

import random

import pytest

from tpuctl.storage.checksum import crc32c, crc32c_joined


def test_checksum_is_the_published_one() -> None:
    assert crc32c(b"123456789") == 0xE3069283  # the check value of CRC-32C (Castagnoli)


@pytest.mark.parametrize("cut", [0, 1, 7, 4096, 99_999, 100_000])
def test_checksum_of_two_parts_is_that_of_the_whole(cut: int) -> None:
    data = random.Random(0).randbytes(100_000)
    left, right = data[:cut], data[cut:]
    assert crc32c_joined(crc32c(left), crc32c(right), right_bytes=len(right)) == crc32c(data)

"""The checksum that buckets keep of every object, crc32c, of parts and of what parts make together."""

from __future__ import annotations

from functools import cache

import google_crc32c

# Polynomials over GF(2) as words whose highest bit is the coefficient of x^0; this is Castagnoli's without x^32.
_POLYNOMIAL = 0x82F63B78
_ONE = 1 << 31
_X = 1 << 30


def crc32c(data: bytes) -> int:
    """The checksum of some bytes."""
    return int(google_crc32c.value(data))


def crc32c_joined(left: int, right: int, *, right_bytes: int) -> int:
    """The checksum of bytes of which ``left`` is that of the beginning and ``right`` that of the last ``right_bytes``.

    Bytes that follow multiply what came before by x^8 each; see "A Painless Guide to CRC Error Detection Algorithms".
    """
    shift, square = _ONE, 3
    while right_bytes:
        if right_bytes & 1:
            shift = _product(shift, _power(square))
        right_bytes, square = right_bytes >> 1, square + 1
    return _product(shift, left) ^ right


@cache
def _power(square: int) -> int:
    """x to the power of 2^square."""
    return _X if square == 0 else _product(_power(square - 1), _power(square - 1))


def _product(one: int, other: int) -> int:
    """The product modulo the polynomial."""
    found = 0
    for bit in range(31, -1, -1):
        if one >> bit & 1:
            found ^= other
        other = other >> 1 ^ (_POLYNOMIAL if other & 1 else 0)
    return found

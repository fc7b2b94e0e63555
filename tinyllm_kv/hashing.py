"""Names and checksums: the chained block hash, its namespaces and CRC-32C."""

from __future__ import annotations

import hashlib
from operator import index
from typing import Any, SupportsIndex

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ._binding import bytes_of, lib, u32, u64
from ._convert import UINT32, UINT32_MAX, UINT64_MAX, integer, integers


def block_hash(parent: SupportsIndex | None, tokens: ArrayLike) -> int:
    """Return the chained hash of one block: FNV-1a 64 over its parent's hash and its tokens.

    Args:
        parent: the hash of the block before; 0 or ``None`` for a sequence's first block.
        tokens: token ids, integers in 0 … 2^32-1; any number of them.

    Returns:
        the hash, 1 … 2^64-1 (a 0 becomes 1, as 0 says "no hash").

    Raises:
        TypeError: a token or ``parent`` is no integer.
        OverflowError: a token or ``parent`` is out of range.
    """
    array = integers(tokens, UINT32, "block_hash: tokens")
    return int(lib.tl_kv_block_hash(_parent(parent, "block_hash"), u32(array), len(array)))


def block_hashes(
    tokens: ArrayLike, block_tokens: SupportsIndex, parent: SupportsIndex | None = 0
) -> NDArray[np.uint64]:
    """Return the chained hashes of all full blocks of a sequence.

    Args:
        tokens: token ids, integers in 0 … 2^32-1. A tail that fills no block has no hash.
        block_tokens: token positions of a block, at least 1.
        parent: what the first block is chained to; anything but 0 or ``None`` opens a key
            space of its own (see :func:`namespace`).

    Returns:
        uint64 ``[len(tokens) // block_tokens]``.

    Raises:
        TypeError: a token, ``parent`` or ``block_tokens`` is no integer.
        OverflowError: a token or ``parent`` is out of range.
        ValueError: ``block_tokens`` is out of range.
    """
    array = integers(tokens, UINT32, "block_hashes: tokens")
    size = integer(block_tokens, 1, UINT32_MAX, "block_hashes: block_tokens", ValueError)
    hashes = np.empty(len(array) // size, np.uint64)
    lib.tl_kvx_block_hashes(_parent(parent, "block_hashes"), u32(array), size, len(hashes), u64(hashes))
    return hashes


def _parent(parent: SupportsIndex | None, call: str) -> int:
    return 0 if parent is None else integer(parent, 0, UINT64_MAX, f"{call}: parent")


def namespace(*parts: str | bytes | bytearray | memoryview | SupportsIndex) -> int:
    """Return the parent of a key space of its own: of an adapter, a tenant, a model.

    Sequences whose first blocks have different parents do not share blocks. The number is the 64-bit
    BLAKE2b, read big-endian, of the parts one after another, each as

        kind     one byte: ``s`` a string, ``b`` bytes, ``i`` an integer
        length   8 bytes, little-endian: how many bytes of data follow
        data     UTF-8; the bytes; the shortest little-endian two's complement

    so that parts that differ in kind, number or borders never give the same bytes: ``("a", "")``,
    ``("", "a")``, ``("a",)`` and ``(b"a",)`` are four namespaces. It is the same in every process and
    on every machine.

    Args:
        parts: at least one string, bytes-like object or integer of any size and sign. ``True`` and
            ``False`` are refused: they would be the integers 1 and 0.

    Returns:
        the ``parent`` of a sequence's first block, 1 … 2^64-1 (a 0 becomes 1, as 0 is no namespace).

    Raises:
        TypeError: no parts, or a part of another kind.
    """
    if not parts:
        raise TypeError("namespace: at least one part expected")
    digest = hashlib.blake2b(digest_size=8)
    for part in parts:
        kind, data = _tagged(part)
        digest.update(kind + len(data).to_bytes(8, "little") + data)
    return int.from_bytes(digest.digest(), "big") or 1


def _tagged(part: Any) -> tuple[bytes, bytes]:
    """Return a part of a namespace as its kind and its data."""
    if isinstance(part, str):
        return b"s", part.encode("utf-8", "surrogatepass")
    if isinstance(part, (bytes, bytearray, memoryview)):
        return b"b", bytes(part)
    try:
        if isinstance(part, (bool, np.bool_)):  # some versions of NumPy let the latter be an index
            raise TypeError
        number = index(part)
    except TypeError:
        raise TypeError(f"namespace: a string, bytes or an integer expected, not {part!r}") from None
    bits = (number if number >= 0 else ~number).bit_length()
    return b"i", number.to_bytes(bits // 8 + 1, "little", signed=True)


def crc32c(data: Any, crc: SupportsIndex = 0) -> int:
    """Return the CRC-32C (Castagnoli) of a buffer.

    Args:
        data: any contiguous buffer; its bytes are read in place.
        crc: the result for the bytes before, to continue from; 0 to start.

    Raises:
        TypeError: ``data`` is no buffer, or ``crc`` no integer.
        ValueError, BufferError: ``data`` is not contiguous.
        OverflowError: ``crc`` is not in 0 … 2^32-1.
    """
    start = integer(crc, 0, UINT32_MAX, "crc32c: crc")
    view = bytes_of(data, "crc32c: data")
    return int(lib.tl_crc32c(view, len(view), start))

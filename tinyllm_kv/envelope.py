"""Read an envelope without a pool.

    offset  size  field
         0     4  magic, "TLKV"
         4     2  version, 1
         6     2  dtype, 1 (float16)
         8     4  n_blocks
        12     4  block_tokens
        16     4  n_layers
        20     4  n_kv_heads
        24     4  head_dim
        28        n_blocks records:
                    8  hash, 0 for a block that is not registered
                    4  n_tokens, 1 .. block_tokens
                    P  payload, float16 [n_layers, 2, n_kv_heads, block_tokens, head_dim]
       end     4  CRC-32C of everything before it

Little-endian, unaligned, nothing between the fields.
"""

from __future__ import annotations

import math
import struct
import sys
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from .errors import EnvelopeError
from .hashing import crc32c

_HEADER = struct.Struct("<4sHHIIIII")
_CRC = struct.Struct("<I")


def _refusal(rule: int, offset: int, why: str) -> EnvelopeError:
    return EnvelopeError(f"Envelope.parse: rule {rule}, offset {offset}: {why}", rule=rule, offset=offset)


def _bytes_of(buffer: Any) -> npt.NDArray[np.uint8]:
    """Return a buffer's bytes, uint8 [n], not copied, and read-only for good."""
    view = memoryview(buffer).toreadonly()
    if not view.c_contiguous:
        raise ValueError("Envelope.parse: the buffer is not contiguous")
    return np.frombuffer(view, np.uint8)


@dataclass(frozen=True, eq=False)
class Envelope:
    """An envelope's header, block names and payload; :meth:`parse` makes one."""

    version: int
    dtype: int
    """The C code of the element type: 1, float16."""
    n_blocks: int
    block_tokens: int
    n_layers: int
    n_kv_heads: int
    head_dim: int
    crc: int
    """The CRC-32C of everything before it, found right."""
    hashes: npt.NDArray[np.uint64] = field(repr=False)
    """uint64 [n_blocks], 0 for a block without a name; copied, in native byte order."""
    n_tokens: npt.NDArray[np.uint32] = field(repr=False)
    """uint32 [n_blocks], how many positions of a block hold data; copied, in native byte order."""
    payload: npt.NDArray[np.float16] = field(repr=False)
    """float16 [n_blocks, n_layers, 2, n_kv_heads, block_tokens, head_dim], little-endian, unaligned,
    read-only, in the caller's buffer: whatever changes that changes this."""

    @classmethod
    def parse(cls, buffer: Any) -> Envelope:
        """Read and validate an envelope; its payload stays where it is.

        The checks run in the order of a pool's import, but for the shape (rule 4), which only a pool can
        judge: at least 32 bytes (rule 1) and the magic (2), version and dtype (3), the length that the
        header implies (1), the CRC (2), every record's n_tokens (5). No memory is sized by a field before
        the length has shown that the buffer holds what the field promises.

        Args:
            buffer: the whole envelope and nothing else: any contiguous buffer, whatever its items and its
                alignment are.

        Raises:
            EnvelopeError: a rule is broken. ``rule`` is its number and ``offset`` the byte at which it is
                broken (for a wrong length, the end of the buffer); the text gives both, and the values.
            TypeError: not a buffer.
            ValueError: not a contiguous one.
        """
        data = _bytes_of(buffer)
        if data.size < _HEADER.size + _CRC.size:
            raise _refusal(
                1, data.size, f"{data.size} bytes, an envelope has at least {_HEADER.size + _CRC.size}"
            )
        magic, version, dtype, n, *shape = _HEADER.unpack_from(data.data)
        if magic != b"TLKV":
            raise _refusal(2, 0, f"the magic is {magic!r}, not b'TLKV'")
        if version != 1:
            raise _refusal(3, 4, f"the version is {version}, not 1")
        if dtype != 1:
            raise _refusal(3, 6, f"the dtype is {dtype}, not 1 (float16)")

        block_tokens, n_layers, n_kv_heads, head_dim = shape
        block_shape = n_layers, 2, n_kv_heads, block_tokens, head_dim
        record_bytes = 12 + 2 * math.prod(block_shape)
        implied = _HEADER.size + n * record_bytes + _CRC.size
        if data.size != implied:
            raise _refusal(1, data.size, f"{data.size} bytes, the header implies {implied}")
        if 2 * math.prod(max(1, size) for size in (n, *block_shape)) > sys.maxsize:
            raise _refusal(1, 12, f"no array can have the shape {(n, *block_shape)}")

        end = data.size - _CRC.size
        (crc,) = _CRC.unpack_from(data.data, end)
        found = crc32c(data.data[:end])
        if crc != found:
            raise _refusal(2, end, f"the CRC is 0x{crc:08X}, that of the bytes before it is 0x{found:08X}")

        records = data[_HEADER.size : end].reshape(n, record_bytes)
        hashes = records[:, :8].view("<u8")[:, 0].astype(np.uint64)
        n_tokens = records[:, 8:12].view("<u4")[:, 0].astype(np.uint32)
        payload = records[:, 12:].view("<f2").reshape(n, *block_shape)
        broken = (n_tokens == 0) | (n_tokens > block_tokens) | (n_tokens < block_tokens) & (hashes != 0)
        if broken.any():
            i = int(broken.argmax())
            name = f" under the hash 0x{hashes[i]:016X}" if hashes[i] else " and no hash"
            expected = f"{block_tokens}" if hashes[i] else f"1 .. {block_tokens}"
            offset = _HEADER.size + i * record_bytes + 8
            raise _refusal(5, offset, f"block {i} has n_tokens {n_tokens[i]}{name}, expected {expected}")
        return cls(
            version, dtype, n, block_tokens, n_layers, n_kv_heads, head_dim, crc, hashes, n_tokens, payload
        )

"""block_hash, block_hashes and crc32c, against a second implementation, and what they refuse."""

from __future__ import annotations

import array
import mmap
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from parity import transcription

from tinyllm_kv import block_hash, block_hashes, crc32c

H0 = 0xA91AB0C1027B9366
H1 = 0x03DF829571605C60

TOKENS = st.lists(st.integers(0, 2**32 - 1) | st.integers(0, 300), max_size=40)
HASH = st.integers(0, 2**64 - 1)


def test_worked_chain() -> None:
    """Tokens 1 2 3 4 5 in blocks of 2 have the two hashes of the worked example; 5 has none."""
    assert block_hash(0, [1, 2]) == block_hash(None, [1, 2]) == H0
    assert block_hash(H0, [3, 4]) == H1
    hashes = block_hashes([1, 2, 3, 4, 5], 2)
    assert hashes.dtype == np.uint64
    assert hashes.tolist() == [H0, H1]


@given(HASH, TOKENS)
def test_block_hash_is_the_transcription(parent: int, tokens: list[int]) -> None:
    """Any parent and tokens give what FNV-1a a byte at a time gives."""
    assert block_hash(parent, tokens) == transcription.block_hash(parent, tokens)


@given(HASH, TOKENS, st.integers(1, 7))
def test_block_hashes_is_the_chain(parent: int, tokens: list[int], size: int) -> None:
    """block_hashes is block_hash of each full block, chained, from a parent of the caller's."""
    expected, last = [], parent
    for start in range(0, len(tokens) - size + 1, size):
        last = transcription.block_hash(last, tokens[start : start + size])
        expected.append(last)
    assert block_hashes(tokens, size, parent).tolist() == expected


@pytest.mark.parametrize("tokens", [[], (), np.array([]), np.array([], np.uint32), array.array("Q")])
def test_no_tokens(tokens: Any) -> None:
    """No tokens at all is fine."""
    assert block_hash(7, tokens) == transcription.block_hash(7, [])
    assert block_hashes(tokens, 2).tolist() == []
    assert block_hashes(tokens, 2).dtype == np.uint64


def test_block_hashes_of_huge_blocks() -> None:
    """A block size beyond the tokens gives no hash, up to 2^32-1."""
    assert block_hashes([1, 2], 2**32 - 1).tolist() == []


def test_parents_open_key_spaces() -> None:
    """A parent other than 0 gives other hashes for the whole chain; None is 0."""
    plain, other = block_hashes(range(8), 2), block_hashes(range(8), 2, parent=5)
    assert not set(plain.tolist()) & set(other.tolist())
    assert block_hashes(range(8), 2, None).tolist() == plain.tolist()


SAME = {
    "list": [1, 2],
    "tuple": (1, 2),
    "range": range(1, 3),
    "int8": np.array([1, 2], np.int8),
    "int16": np.array([1, 2], np.int16),
    "int32": np.array([1, 2], np.int32),
    "int64": np.array([1, 2], np.int64),
    "uint8": np.array([1, 2], np.uint8),
    "uint16": np.array([1, 2], np.uint16),
    "uint32": np.array([1, 2], np.uint32),
    "uint64": np.array([1, 2], np.uint64),
    "big-endian": np.array([1, 2], ">u4"),
    "array Q": array.array("Q", [1, 2]),
    "array b": array.array("b", [1, 2]),
    "array I": array.array("I", [1, 2]),
    "memoryview": memoryview(array.array("H", [1, 2])),
    "strided": np.array([1, 9, 2, 9], np.uint32)[::2],
    "reversed": np.array([2, 1], np.uint32)[::-1],
    "column": np.array([[1, 9], [2, 9]], np.int64)[:, 0],
    "read-only": np.frombuffer(b"\1\0\0\0\2\0\0\0", "<u4"),
    "unaligned": np.frombuffer(b"\0\1\0\0\0\2\0\0\0", "<u4", offset=1),
    "NumPy integers": [np.uint8(1), np.int64(2)],
    "objects": np.array([1, 2], object).tolist(),
}


@pytest.mark.parametrize("form", SAME)
def test_trap_09_tokens_of_any_integer_type(form: str) -> None:
    """The same tokens in any integer type, converted and never reinterpreted, have the same hash."""
    assert block_hash(0, SAME[form]) == H0
    assert block_hashes(SAME[form], 2).tolist() == [H0]


@pytest.mark.parametrize(
    "tokens",
    [
        [-1],
        [2**32],
        [0, 2**32],
        [2**64],
        [-(2**70)],
        [2**63, -1],
        (2**64 - 1, -1),
        np.array([-1]),
        np.array([-1], np.int8),
        np.array([2**32], np.int64),
        np.array([2**64 - 1], np.uint64),
        array.array("q", [-1]),
    ],
    ids=str,
)
@pytest.mark.parametrize("call", [lambda t: block_hash(0, t), lambda t: block_hashes(t, 1)])
def test_trap_09_tokens_out_of_range(call: Callable[[Any], Any], tokens: Any) -> None:
    """A token below 0 or above 2^32-1 is an OverflowError that shows it and names the call."""
    with pytest.raises(OverflowError, match=r"^block_hash(es)?: tokens: -?\d+ is not in 0 … 4294967295"):
        call(tokens)


@pytest.mark.parametrize(
    "tokens",
    [
        [1.5],
        [1.0],
        [1, 2.0],
        [2**63, 1.0],
        np.array([1.0]),
        np.float32(1),
        1.5,
        None,
        "12",
        b"12",
        ["1"],
        [None],
        [True],
        np.array([1j]),
        np.array(["2020-01-01"], "datetime64[D]"),
        {1, 2},
        {1: 2},
        iter([1, 2]),
    ],
    ids=str,
)
@pytest.mark.parametrize("call", [lambda t: block_hash(0, t), lambda t: block_hashes(t, 1)])
def test_trap_09_tokens_that_are_no_integers(call: Callable[[Any], Any], tokens: Any) -> None:
    """A float, even a whole one, or anything else that is no sequence of integers, is a TypeError."""
    with pytest.raises(TypeError, match=r"^block_hash(es)?: tokens: integers expected"):
        call(tokens)


def test_tokens_of_two_dimensions() -> None:
    """Tokens are a sequence, not a table, and a ragged one is none."""
    with pytest.raises(ValueError, match="^block_hash: tokens: one dimension expected, not 2"):
        block_hash(0, [[1, 2]])
    with pytest.raises(ValueError, match="^block_hash: tokens: "):
        block_hash(0, [[1], [2, 3]])


@pytest.mark.parametrize("hash", [-1, 2**64, 2**100])
def test_trap_19_parents_out_of_range(hash: int) -> None:
    """A parent out of 0 … 2^64-1 is an OverflowError."""
    with pytest.raises(OverflowError, match=f"^block_hash: parent: {hash} is not in"):
        block_hash(hash, [1])
    with pytest.raises(OverflowError, match=f"^block_hashes: parent: {hash} is not in"):
        block_hashes([1], 1, hash)


@pytest.mark.parametrize("hash", [1.0, "1", b"1", [1]])
def test_parents_that_are_no_integers(hash: Any) -> None:
    """A parent that is no integer is a TypeError."""
    with pytest.raises(TypeError, match="^block_hash: parent: .* is not an integer"):
        block_hash(hash, [1])


@pytest.mark.parametrize("size", [0, -1, 2**32, 2**70])
def test_block_sizes_out_of_range(size: int) -> None:
    """A block has 1 … 2^32-1 tokens."""
    with pytest.raises(ValueError, match=f"^block_hashes: block_tokens: {size} is not in"):
        block_hashes([1, 2], size)


# ---- crc32c ------------------------------------------------------------------------------------


def test_crc32c_published_values() -> None:
    """The check value, and the four vectors of RFC 3720, B.4."""
    assert crc32c(b"123456789") == 0xE3069283
    assert crc32c(bytes(32)) == 0x8A9136AA
    assert crc32c(b"\xff" * 32) == 0x62A8AB43
    assert crc32c(bytes(range(32))) == 0x46DD794E
    assert crc32c(bytes(reversed(range(32)))) == 0x113FDB5C


@given(st.binary(max_size=200), st.integers(0, 200))
def test_crc32c_continues(data: bytes, split: int) -> None:
    """A result goes on where it stopped, and is the one of the whole."""
    assert crc32c(data[split:], crc32c(data[:split])) == crc32c(data) == transcription.crc32c(data)


@pytest.mark.parametrize("crc", [0, 1, 2**32 - 1])
def test_crc32c_of_nothing(crc: int) -> None:
    """No bytes leave the running value."""
    assert crc32c(b"", crc) == crc


def test_trap_13_crc32c_counts_bytes() -> None:
    """The bytes of any contiguous buffer count, whatever its items."""
    data = b"123456780000123456789\0\0\0"
    expected = transcription.crc32c(data)
    with mmap.mmap(-1, len(data)) as shared:
        shared[:] = data
        buffers = [
            bytearray(data),
            memoryview(data),
            memoryview(data).cast("Q"),
            array.array("H", data),
            np.frombuffer(data, "<u4"),
            np.frombuffer(data, np.uint8).reshape(2, 3, 4),
        ]
        for buffer in buffers:
            assert crc32c(buffer) == expected
        assert crc32c(shared) == expected


@pytest.mark.parametrize("offset", range(16))
def test_trap_15_crc32c_at_any_alignment(offset: int) -> None:
    """Buffers of any alignment and length give the plain result."""
    data = bytes(i * 7 % 256 for i in range(1056))
    for length in [*range(70), 255, 256, 257, 1023, 1024]:
        assert crc32c(memoryview(data)[offset : offset + length]) == transcription.crc32c(data[offset : offset + length])


@pytest.mark.parametrize("data", ["text", 5, None, [1, 2], 1.5])
def test_crc32c_of_no_buffer(data: Any) -> None:
    """What is no buffer is a TypeError."""
    with pytest.raises(TypeError):
        crc32c(data)


def test_crc32c_of_scattered_bytes() -> None:
    """A buffer with holes is refused, never read as if it had none."""
    with pytest.raises(ValueError, match="contiguous"):
        crc32c(np.zeros(8, np.uint8)[::2])
    with pytest.raises(BufferError, match="contiguous"):
        crc32c(memoryview(b"12345678")[::2])


@pytest.mark.parametrize("crc", [-1, 2**32])
def test_crc32c_from_out_of_range(crc: int) -> None:
    """A running value is a 32-bit one."""
    with pytest.raises(OverflowError, match=f"^crc32c: crc: {crc} is not in 0 … 4294967295"):
        crc32c(b"1", crc)


def test_crc32c_from_no_integer() -> None:
    """A running value is an integer."""
    with pytest.raises(TypeError, match="^crc32c: crc: 1.0 is not an integer"):
        crc32c(b"1", 1.0)  # type: ignore[arg-type]

"""Envelope.parse: an envelope read and judged without a pool."""

from __future__ import annotations

import gc
import json
import mmap
import struct
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from parity import transcription

from tinyllm_kv.envelope import Envelope
from tinyllm_kv.errors import EnvelopeError

FIXTURES = Path(__file__).resolve().parents[1] / "fixtures"
WORKED = (FIXTURES / "worked_envelope.bin").read_bytes()
GOLDEN = json.loads((FIXTURES / "kv_wire_v1.json").read_text())


def sealed(body: bytes) -> bytes:
    """Return the bytes with their right CRC after them."""
    return body + struct.pack("<I", transcription.crc32c(body))


def header(*fields: int) -> bytes:
    """Return a header of n_blocks, block_tokens, n_layers, n_kv_heads and head_dim."""
    return b"TLKV" + struct.pack("<HHIIIII", 1, 1, *fields)


def patched(offset: int, new: bytes, original: bytes = WORKED) -> bytes:
    """Return an envelope with some bytes replaced and the CRC made right again."""
    return sealed(original[:offset] + new + original[offset + len(new) : -4])


def refused(buffer: Any, rule: int, offset: int, *words: str) -> None:
    """Check that a buffer is refused by this rule at this offset, in a text with these words."""
    with pytest.raises(EnvelopeError) as caught:
        Envelope.parse(buffer)
    text = str(caught.value)
    assert (caught.value.rule, caught.value.offset) == (rule, offset), text
    assert text.startswith(f"Envelope.parse: rule {rule}, offset {offset}: ")
    assert caught.value.status == 7
    for word in words:
        assert word in text


# ---- what it gives -----------------------------------------------------------------------------


def test_worked_envelope() -> None:
    """The worked envelope gives the values that it was worked out from."""
    e = Envelope.parse(WORKED)
    assert (e.version, e.dtype, e.n_blocks, e.block_tokens) == (1, 1, 1, 2)
    assert (e.n_layers, e.n_kv_heads, e.head_dim, e.crc) == (1, 1, 2, 0x4F0B541C)
    assert e.hashes.tolist() == [0xA91AB0C1027B9366]
    assert e.n_tokens.tolist() == [2]
    assert (e.hashes.dtype, e.n_tokens.dtype, e.payload.dtype) == (np.uint64, np.uint32, np.dtype("<f2"))
    assert e.payload.shape == (1, 1, 2, 1, 2, 2)
    assert e.payload[0, 0, 0, 0].tolist() == [[1, 2], [3, 4]]
    assert e.payload[0, 0, 1, 0].tolist() == [[0.5, -1], [0, 0.25]]


@pytest.mark.parametrize("case", GOLDEN, ids=[case["name"] for case in GOLDEN])
def test_golden_cases(case: dict[str, Any]) -> None:
    """Each golden envelope gives its case's tokens a block, hashes and values, with zeros past the tail."""
    B, L, H, D, tokens = (case[key] for key in ("B", "L", "H", "D", "tokens"))
    e = Envelope.parse(bytes.fromhex(case["hex"]))
    n = -(-len(tokens) // B)
    assert (e.n_blocks, e.block_tokens, e.n_layers, e.n_kv_heads, e.head_dim) == (n, B, L, H, D)
    assert e.n_tokens.tolist() == [len(tokens[i : i + B]) for i in range(0, len(tokens), B)]
    hashes, parent = [], 0
    for i in range(len(tokens) // B):
        parent = transcription.block_hash(parent, tokens[i * B : i * B + B])
        hashes.append(parent)
    assert e.hashes.tolist() == hashes + [0] * (n - len(hashes))
    expected = np.zeros((n * B, L, 2, H, D), np.uint16)
    expected[: len(tokens)] = np.array(case["values"], np.uint16).reshape(-1, L, 2, H, D)
    by_block = expected.reshape(n, B, L, 2, H, D).transpose(0, 2, 3, 4, 1, 5)
    assert e.payload.shape == by_block.shape
    assert np.array_equal(e.payload.view("<u2"), by_block)


def test_payload_is_the_callers_buffer() -> None:
    """The payload of several blocks is a read-only view: it changes with the buffer."""
    buffer = bytearray.fromhex(GOLDEN[1]["hex"])
    e = Envelope.parse(buffer)
    assert np.shares_memory(e.payload, np.frombuffer(buffer, np.uint8))
    buffer[28 + 28 + 12 : 28 + 28 + 14] = struct.pack("<e", 7.5)
    assert e.payload[1, 0, 0, 0, 0, 0] == 7.5
    with pytest.raises(ValueError, match="read-only"):
        e.payload[0] = 0
    with pytest.raises(ValueError):
        e.payload.flags.writeable = True


def test_payload_keeps_the_buffer_alive() -> None:
    """A payload is readable after everything else that knew the buffer is gone."""
    payload = Envelope.parse(bytes(bytearray(WORKED))).payload[0, 0, 1].T
    gc.collect()
    assert payload.ravel().tolist() == [0.5, 0, -1, 0.25]


def test_any_contiguous_buffer(tmp_path: Path) -> None:
    """The worked envelope reads the same from every kind of buffer, whatever its items are."""
    path = tmp_path / "worked"
    path.write_bytes(WORKED)
    with path.open("rb") as file:
        mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    kinds: list[Any] = [
        WORKED,
        bytearray(WORKED),
        memoryview(WORKED),
        memoryview(WORKED).cast("I"),
        np.frombuffer(WORKED, np.uint8),
        np.frombuffer(WORKED, "<u2"),
        np.frombuffer(WORKED, ">u4"),
        np.frombuffer(WORKED, np.uint8).reshape(6, 10),
        mapped,
    ]
    for kind in kinds:
        e = Envelope.parse(kind)
        assert e.hashes.tolist() == [0xA91AB0C1027B9366]
        assert e.payload.ravel().tolist() == [1, 2, 3, 4, 0.5, -1, 0, 0.25]


@pytest.mark.parametrize("offset", range(16))
def test_any_alignment(offset: int) -> None:
    """An envelope reads the same at every byte offset of a larger buffer."""
    e = Envelope.parse(memoryview(bytes(offset) + WORKED)[offset:])
    assert e.payload.ravel().tolist() == [1, 2, 3, 4, 0.5, -1, 0, 0.25]


def test_no_blocks() -> None:
    """An envelope of no blocks has empty arrays of the right shape."""
    e = Envelope.parse(sealed(header(0, 16, 2, 2, 4)))
    assert (e.hashes.shape, e.n_tokens.shape, e.payload.shape) == ((0,), (0,), (0, 2, 2, 2, 16, 4))


def test_a_dimension_of_zero() -> None:
    """A dimension of 0 is for a pool to refuse (rule 4): the payload is empty."""
    e = Envelope.parse(sealed(header(1, 2, 1, 1, 0) + struct.pack("<QI", 0, 1)))
    assert e.payload.shape == (1, 1, 2, 1, 2, 0)


def test_repr_is_short() -> None:
    """The repr shows the header and none of the arrays."""
    text = repr(Envelope.parse(WORKED))
    assert "n_blocks=1" in text and "payload" not in text


# ---- what it refuses ---------------------------------------------------------------------------


def test_every_bit_flip() -> None:
    """All 480 bit flips are refused, each by the first rule that its byte breaks."""
    for bit in range(480):
        flipped = bytearray(WORKED)
        flipped[bit // 8] ^= 1 << bit % 8
        byte = bit // 8
        if byte < 4:
            refused(flipped, 2, 0, "magic")
        elif byte < 8:
            refused(flipped, 3, byte & ~1)
        elif byte < 28:
            refused(flipped, 1, 60, "60 bytes, the header implies ")
        else:
            refused(flipped, 2, 56, "CRC")


def test_every_truncation() -> None:
    """Every shorter piece breaks rule 1 where it ends, and so does one byte more."""
    for n in range(60):
        refused(WORKED[:n], 1, n, f"{n} bytes", "at least 32" if n < 32 else "implies 60")
    refused(WORKED + b"\0", 1, 61, "61 bytes", "implies 60")


@pytest.mark.parametrize("version", [0, 2, 0x0101])
def test_rule_3_version(version: int) -> None:
    """Any version but 1 is refused, with a right CRC too."""
    refused(patched(4, struct.pack("<H", version)), 3, 4, f"version is {version}, not 1")


@pytest.mark.parametrize("dtype", [0, 2, 8, 0xFFFF])
def test_rule_3_dtype(dtype: int) -> None:
    """Any dtype but float16 is refused, with a right CRC too."""
    refused(patched(6, struct.pack("<H", dtype)), 3, 6, f"dtype is {dtype}, not 1")


def test_rule_2_crc() -> None:
    """A wrong CRC is shown beside the right one."""
    refused(WORKED[:-4] + bytes(4), 2, 56, "0x00000000", "0x4F0B541C")


@pytest.mark.parametrize("n_tokens", [0, 3, 2**31, 2**32 - 1])
def test_rule_5_n_tokens(n_tokens: int) -> None:
    """A block's n_tokens outside 1 .. block_tokens is refused, without a hash."""
    buffer = patched(28, struct.pack("<QI", 0, n_tokens))
    refused(buffer, 5, 36, f"block 0 has n_tokens {n_tokens} and no hash, expected 1 .. 2")


def test_rule_5_hashed_and_partial() -> None:
    """A block with a hash is full."""
    refused(patched(36, b"\1"), 5, 36, "block 0 has n_tokens 1 under the hash 0xA91AB0C1027B9366, expected 2")


def test_rule_5_in_a_later_block() -> None:
    """The first bad record is named, by its number and offset."""
    three = bytes.fromhex(GOLDEN[1]["hex"])
    bad = patched(28 + 2 * 28 + 8, b"\0", patched(28 + 28 + 8, b"\1", three))
    refused(bad, 5, 28 + 28 + 8, "block 1 has n_tokens 1")
    refused(patched(28 + 2 * 28 + 8, b"\0", three), 5, 28 + 2 * 28 + 8, "block 2 has n_tokens 0")


def test_rule_5_without_any_position() -> None:
    """Blocks of no positions cannot hold a token."""
    refused(sealed(header(1, 0, 1, 1, 2) + struct.pack("<QI", 0, 0)), 5, 36, "expected 1 .. 0")


def test_a_partial_block_may_stand_anywhere() -> None:
    """Partial blocks without a hash, and full ones without a hash, are fine in any place."""
    three = bytes.fromhex(GOLDEN[1]["hex"])
    e = Envelope.parse(patched(28, struct.pack("<QI", 0, 1), patched(56, bytes(8), three)))
    assert (e.hashes.tolist(), e.n_tokens.tolist()) == ([0, 0, 0], [1, 2, 1])


def test_order_of_the_checks() -> None:
    """What breaks several rules is refused by the first: size, magic, version, dtype, length, CRC."""
    refused(b"XXXX" + bytes(27), 1, 31)
    refused(b"XXXX" + bytes(28), 2, 0)
    refused(b"TLKV" + b"\2\0\2\0" + bytes(24), 3, 4)
    refused(b"TLKV" + b"\1\0\2\0" + bytes(24), 3, 6)
    refused(header(1, 2, 1, 1, 2) + bytes(4), 1, 32)
    refused(header(1, 2, 1, 1, 2) + bytes(32), 2, 56)


def test_crafted_block_count_sizes_no_memory() -> None:
    """A right CRC over 2^32-1 blocks of which none is there: refused at once, memory flat, cut short too."""
    crafted = bytes.fromhex("544c4b5601000100ffffffff0200000001000000010000000200000089399f5e")
    assert sealed(crafted[:-4]) == crafted
    refused(crafted, 1, 32)
    tracemalloc.start()
    try:
        for n in range(33):
            refused(crafted[:n], 1, n)
        assert tracemalloc.get_traced_memory()[1] < 100_000
    finally:
        tracemalloc.stop()


def test_crafted_shape_does_not_wrap() -> None:
    """A size that is 32 modulo 2^64 is not 32."""
    refused(
        bytes.fromhex("544c4b56010001000000004001000000fdffffff010000000100000077770755"), 1, 32, "implies"
    )


def test_shape_that_no_array_can_have() -> None:
    """No blocks of an absurd shape have the right length, but no payload."""
    refused(sealed(header(0, *[2**32 - 1] * 4)), 1, 12, "shape")
    refused(sealed(header(1, *[2**32 - 1] * 3, 0) + struct.pack("<QI", 0, 1)), 1, 12, "shape")


@pytest.mark.parametrize("value", [None, 60, "TLKV" * 15, [0] * 60, np])
def test_not_a_buffer(value: Any) -> None:
    """What is no buffer is a TypeError."""
    with pytest.raises(TypeError):
        Envelope.parse(value)


def test_not_contiguous() -> None:
    """A buffer with gaps is refused by name."""
    with pytest.raises(ValueError, match="Envelope.parse: the buffer is not contiguous"):
        Envelope.parse(memoryview(WORKED * 2)[::2])


@given(st.tuples(*[st.integers(0, 2)] * 5), st.binary(max_size=80))
def test_any_bytes(fields: tuple[int, ...], tail: bytes) -> None:
    """Whatever the bytes are, the answer is an Envelope of just these or an error with its rule."""
    for data in (tail, b"TLKV" + tail, sealed(header(*fields) + tail)):
        try:
            e = Envelope.parse(data)
        except EnvelopeError as error:
            assert error.rule in (1, 2, 3, 5)
        else:
            assert 32 + 12 * e.n_blocks + e.payload.nbytes == len(data)

"""Faults that software of this kind has shipped, by number; each test is the right answer to one.

In Python a fault's tests are ``test_trap_NN_*``: here, or in the file named. The C cases are in tests/c.

 1  a block that nobody holds gains a holder, in silence      double_unref_is_einval_and_changes_nothing
 2  a count is believed, and memory sized by it, unchecked    a_claim_of_many_blocks_is_refused_before_anything_is_sized
 3  dimensions multiply past 64 bits to a likely length       a_length_that_wraps_around_is_refused
 4  a view is used after its pool has gone                    test_views.py
 5  deletions fill the index, which grows or slows down       churn_in_small_pools_allocates_nothing,
                                                              churn_at_seven_eighths_allocates_nothing
 6  two threads are inside the library at once                test_threads.py; threads_exclude_each_other
 7  eviction takes a chain's head, and its tail is useless    a_chain_released_tail_first_keeps_its_head
 8  block 0 passes for no block                               id_0_is_a_block
 9  integers of another width are read by their bytes         test_hashing.py
10  an import that fails has changed something                a_refused_import_leaves_no_trace
11  an envelope carries what a block held before              old_bytes_do_not_leak_through_padding
12  a view of a block given up shows its next owner's data    test_views.py: documented, and no crash
13  a buffer's items are counted for its bytes                also test_hashing.py
14  a view writes to a shared or registered block             test_views.py
15  words are loaded from addresses not aligned for them      also test_hashing.py; crc_at_every_offset_and_length,
                                                              export_and_import_at_every_offset
16  sanitizers are on, but their finding fails nothing        test_sanitized.py
17  blocks behind a missing one count as a prefix             a_match_ends_at_the_first_hole
18  tenants find each other's blocks                          test_namespace.py (all of it); roots_separate_key_spaces
19  hashes lose their top bit, or their low ones as floats    also test_hashing.py; any_hash_but_0_is_a_name
20  a number below the range gets through                     both_ends_of_every_range
21  a pool is copied, and freed twice                         test_pool.py
"""

from __future__ import annotations

import array
import mmap
import struct
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from busy import busy, future, look, refused
from parity import transcription

from tinyllm_kv import EnvelopeError, InvalidArgument, KVError, OutOfBlocks, Pool, ShapeError, block_hash, block_hashes

WORKED = (Path(__file__).resolve().parents[1] / "fixtures/worked_envelope.bin").read_bytes()
H0 = 0xA91AB0C1027B9366
H1 = 0x03DF829571605C60


def worked(n_blocks: int = 3) -> Pool:
    """Return a pool of the worked example's shape: B 2, L 1, H 1, D 2, 16 bytes a block."""
    return Pool(n_blocks, 2, n_layers=1, n_kv_heads=1, head_dim=2)


def sealed(body: bytes) -> bytes:
    """Return bytes with their right CRC after them."""
    return body + struct.pack("<I", transcription.crc32c(body))


@pytest.mark.parametrize("id", [8, 4, 10, -1, [8], [1, 4], [0, 10]], ids=str)
def test_trap_01_ref_of_a_block_that_nobody_holds(id: Any) -> None:
    """ref of a free, a cached or no block raises, and the next good call does not raise on the old message."""
    pool, twin = busy(), busy()
    with pytest.raises(InvalidArgument, match="^tl_kvx_ref: |^Pool.ref: "):
        pool.ref(id)
    pool.ref(0)
    pool.unref(0)
    assert look(pool) == look(twin)
    assert future(pool) == future(twin)


CLAIMS = "544c4b5601000100ffffffff0200000001000000010000000200000089399f5e"


@pytest.mark.parametrize("length", range(33))
def test_trap_02_memory_is_not_sized_by_a_length_field(length: int) -> None:
    """32 bytes that claim 2^32-1 blocks, and each truncation, are refused at once with memory flat."""
    pool = worked()
    envelope = bytes.fromhex(CLAIMS)[:length]
    tracemalloc.start()
    try:
        with pytest.raises(EnvelopeError, match="^tl_kv_import: "):
            pool.import_(envelope)
        assert tracemalloc.get_traced_memory()[1] < 100_000
    finally:
        tracemalloc.stop()
    assert pool.stats() == (3, 0, 0, 0)


def test_trap_03_a_size_that_wraps_around() -> None:
    """Dimensions whose product wraps to the real length are a wrong length, not a wrong shape."""
    envelope = bytes.fromhex("544c4b56010001000000004001000000fdffffff010000000100000077770755")
    assert sealed(envelope[:-4]) == envelope
    with pytest.raises(EnvelopeError, match="length"):
        worked().import_(envelope)


@pytest.mark.parametrize("n_blocks", [1, 2, 7, 14, 15, 28, 56, 112])
def test_trap_05_deletion_churn(n_blocks: int) -> None:
    """Registering and evicting fresh hashes works for ever, at every size of the index."""
    rounds = 5_000
    pool = Pool(n_blocks, 1, n_layers=1, n_kv_heads=1, head_dim=1)
    for hash in range(1, rounds + 1):
        (id,) = pool.alloc(1)
        pool.set_fill(id, 1)
        assert pool.register(id, hash * 0x9E3779B97F4A7C15 % 2**64)
        pool.unref(id)
    assert pool.stats() == (0, 0, n_blocks, rounds - n_blocks)


def test_trap_07_the_tail_of_a_chain_goes_first() -> None:
    """A released chain of three loses its last block first, and the same prompt still matches two."""
    pool = worked(3)
    hashes = block_hashes([1, 2, 3, 4, 5, 6], 2)
    ids = pool.alloc(3)
    pool.set_fill(ids, 2)
    pool.register_many(ids, hashes)
    pool.unref(ids)
    assert pool.alloc(1).tolist() == [2]
    assert pool.match_prefix(hashes).tolist() == [0, 1]


def test_trap_08_id_0_is_a_block() -> None:
    """The first block is 0: registered, looked up, matched, acquired, copied, exported, viewed, imported."""
    pool = worked()
    assert pool.alloc(1).tolist() == [0]
    pool.set_fill(0, 2)
    assert pool.block(0).flags.writeable
    pool.block(0)[:] = 1
    assert pool.register(0, H0) is True
    assert pool.lookup(H0) == 0
    assert pool.lookup(H0) is not None
    assert pool.holds(H0) is True
    assert pool.match_prefix([H0]).tolist() == [0]
    assert pool.acquire([H0], 1)[0].tolist() == [0]
    assert pool.refcount(0) == 5
    assert pool.cow(0) == 1
    pool.unref([0, 0, 0])
    assert pool.cow(0) == 0
    assert (pool.k(0, 0) == 1).all()
    envelope = pool.export([0])
    assert worked().import_(envelope).tolist() == [0]
    pool.unref(0)
    assert pool.state(0) == "cached"
    assert pool.lookup(H0) == 0


RECORD = 12 + 96
GOOD = busy().export([1, 0, 3])
RECORDS = [GOOD[28 + i * RECORD :][:RECORD] for i in range(3)]


def with_last_record(head: bytes) -> bytes:
    """Return GOOD with another hash and fill in its last record."""
    return sealed(GOOD[: 28 + 2 * RECORD] + head + RECORDS[2][12:])


BAD_IMPORTS = {
    "fill 0": (with_last_record(struct.pack("<QI", 0, 0)), EnvelopeError),
    "fill above B": (with_last_record(struct.pack("<QI", 0, 3)), EnvelopeError),
    "fill of all ones": (with_last_record(struct.pack("<QI", 5, 2**32 - 1)), EnvelopeError),
    "hashed and partial": (with_last_record(struct.pack("<QI", 5, 1)), EnvelopeError),
    "no room": (sealed(GOOD[:8] + b"\6" + GOOD[9:28] + b"".join(RECORDS * 2)), OutOfBlocks),
    "other shape": (sealed(GOOD[:24] + b"\2\0\0\0" + b"".join(r[:76] for r in RECORDS)), ShapeError),
}


@pytest.mark.parametrize("case", BAD_IMPORTS)
def test_trap_10_a_refused_import_leaves_no_trace(case: str) -> None:
    """Bad in its last record, too large or of another shape: counts, order, next id and bytes are what they were."""
    envelope, error = BAD_IMPORTS[case]
    raised = refused(lambda pool: pool.import_(envelope), error, "^tl_kv_import: ")
    assert type(raised) is error


@pytest.mark.parametrize("bit", range(len(WORKED) * 8))
def test_trap_10_every_flipped_bit_is_refused(bit: int) -> None:
    """The worked envelope with any one bit flipped is no envelope."""
    envelope = bytearray(WORKED)
    envelope[bit // 8] ^= 1 << bit % 8
    pool = worked()
    with pytest.raises(EnvelopeError):
        pool.import_(envelope)
    assert pool.stats() == (3, 0, 0, 0)


def test_trap_11_padding_hides_old_bytes() -> None:
    """Past the fill an envelope is zero, in each layer, K and V, and head, whatever the slab holds."""
    pool = Pool(1, 4, n_layers=2, n_kv_heads=2, head_dim=3)
    pool.slab.view(np.uint8)[:] = 0xFF
    pool.set_fill(pool.alloc(1), 1)
    payload = np.frombuffer(pool.export([0]), np.uint8, 192, offset=40)
    assert np.count_nonzero(payload) == 48
    rows = payload.reshape(2, 2, 2, 4, 6)
    assert (rows[..., 0, :] == 0xFF).all()
    assert (rows[..., 1:, :] == 0).all()


@pytest.mark.parametrize(
    "form",
    [
        bytes,
        bytearray,
        memoryview,
        lambda e: memoryview(e).cast("I"),
        lambda e: array.array("H", e),
        lambda e: np.frombuffer(e, np.uint8),
        lambda e: np.frombuffer(e, "<u2"),
        lambda e: np.frombuffer(e, np.uint8).reshape(6, 10),
        lambda e: np.frombuffer(b"x" + e, np.uint8)[1:],
        lambda e: np.array(e, "V60"),
    ],
)
def test_trap_13_an_envelope_in_any_buffer(form: Any) -> None:
    """The worked envelope is the same import from any contiguous buffer of its bytes."""
    pool = worked()
    assert pool.import_(form(WORKED)).tolist() == [0]
    assert pool.registered_hash(0) == H0
    assert pool.k(0, 0).tolist() == [[[1, 2], [3, 4]]]
    assert pool.v(0, 0).tolist() == [[[0.5, -1], [0, 0.25]]]
    assert pool.export([0]) == WORKED


def test_trap_13_an_envelope_in_mapped_memory(tmp_path: Path) -> None:
    """A file mapped into memory is a buffer too."""
    (tmp_path / "envelope").write_bytes(WORKED)
    with (tmp_path / "envelope").open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapped:
        assert worked().import_(mapped).tolist() == [0]


@pytest.mark.parametrize("offset", range(16))
def test_trap_15_envelopes_at_any_alignment(offset: int) -> None:
    """Export to and import from any byte offset."""
    pool = busy()
    expected = pool.export([1, 0])
    buffer = memoryview(bytearray(len(expected) + 16))[offset : offset + len(expected)]
    assert pool.export_into([1, 0], buffer) == len(expected)
    assert buffer == expected
    ids = pool.import_(buffer)
    assert pool.block(int(ids[0])).tobytes() == pool.block(1).tobytes()


@pytest.mark.parametrize("offset", range(1, 8))
def test_trap_15_ids_and_hashes_at_any_alignment(offset: int) -> None:
    """Arrays of the right type whose address is odd are read as what they hold."""
    pool = busy()
    hashes = np.frombuffer(b"x" * offset + struct.pack("<QQ", 22, 2**64 - 1), "<u8", offset=offset)
    ids = np.frombuffer(b"x" * offset + struct.pack("<II", 2, 3), "<u4", offset=offset)
    assert pool.match_prefix(hashes).tolist() == ids.tolist() == [2, 3]
    pool.unref(ids)
    assert [pool.refcount(id) for id in (2, 3)] == [1, 2]


def test_trap_17_no_hit_past_a_hole() -> None:
    """A chain of three whose first block is gone matches nothing, and holds nothing."""
    pool = worked(3)
    hashes = block_hashes([1, 2, 3, 4, 5, 6], 2)
    ids = pool.alloc(3)
    pool.set_fill(ids, 2)
    pool.register_many(ids, hashes)
    pool.unref([1, 2, 0])  # 0 becomes the oldest
    assert pool.evict(1) == 1
    assert [pool.holds(hash) for hash in hashes] == [False, True, True]
    assert pool.match_prefix(hashes).tolist() == []
    assert pool.count_prefix(hashes) == 0
    assert pool.acquire(hashes, 1)[1] == 0
    assert pool.stats() == (0, 1, 2, 1)


@pytest.mark.parametrize("hash", [1, 2**63 - 1, 2**63, 2**64 - 1])
@pytest.mark.parametrize("kind", [int, np.uint64])
def test_trap_19_64_bit_hashes(kind: Any, hash: int) -> None:
    """Hashes above 2^63 come and go as positive integers, NumPy's too."""
    pool = worked()
    pool.alloc(2)
    pool.set_fill([0, 1], 2)
    pool.register(0, kind(hash))
    assert pool.registered_hash(0) == hash
    assert pool.lookup(kind(hash)) == 0
    assert pool.holds(kind(hash))
    assert pool.match_prefix([kind(hash)]).tolist() == [0]
    assert pool.match_prefix(np.array([hash], np.uint64)).tolist() == [0]
    assert pool.count_prefix((kind(hash), 5)) == 1
    assert block_hash(kind(hash), [1]) == transcription.block_hash(hash, [1])


def test_trap_19_signed_and_unsigned_in_one_list() -> None:
    """Integers that share no NumPy type keep their 64 bits: no float in between."""
    pool = worked()
    pool.alloc(2)
    pool.set_fill([0, 1], 2)
    hashes = [np.int64(5), np.uint64(2**64 - 1)]
    assert pool.register_many([0, 1], hashes) == 2
    assert [pool.registered_hash(id) for id in (0, 1)] == [5, 2**64 - 1]


@pytest.mark.parametrize(
    "call",
    [
        lambda p: p.k(0, -1),
        lambda p: p.k(0, 2),
        lambda p: p.v(0, -1),
        lambda p: p.v(10, 0),
        lambda p: p.v(-1, 0),
        lambda p: p.block(10),
        lambda p: p.block(-1),
        lambda p: p.set_fill(0, 3),
        lambda p: p.set_fill(0, -1),
        lambda p: p.unref(-1),
        lambda p: p.unref([-1]),
        lambda p: p.unref(10),
        lambda p: p.evict(-1),
    ],
)
def test_trap_20_both_bounds_are_checked(call: Any) -> None:
    """Layer -1 and L, id -1 and N, fill -1 and B+1 are refused: no negative index counts from the end."""
    refused(call, KVError)

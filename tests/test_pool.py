"""What each member of a Pool does; what it refuses is in test_refusals.py."""

from __future__ import annotations

import copy
import mmap
import pickle
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from busy import HASHES, MISSING, NEXT_IDS, SHAPE, busy, future, look
from parity import transcription

import tinyllm_kv
from tinyllm_kv import OutOfBlocks, Pool, Stats

WORKED = (Path(__file__).resolve().parents[1] / "fixtures/worked_envelope.bin").read_bytes()
ENVELOPE = busy().export([1])


def worked(n_blocks: int = 3) -> Pool:
    """Return a pool of the worked example's shape."""
    return Pool(n_blocks, 2, n_layers=1, n_kv_heads=1, head_dim=2)


# ---- making and closing ------------------------------------------------------------------------


def test_shape_and_counts_of_a_new_pool() -> None:
    """A new pool has the shape asked for and all blocks free."""
    pool = Pool(5, 4, n_layers=3, n_kv_heads=2, head_dim=6)
    assert (pool.cfg.n_blocks, pool.cfg.block_tokens) == (5, 4)
    assert (pool.cfg.n_layers, pool.cfg.n_kv_heads, pool.cfg.head_dim) == (3, 2, 6)
    assert len(pool) == 5
    assert pool.block_bytes == 3 * 2 * 2 * 4 * 6 * 2
    assert pool.stats() == Stats(free=5, used=0, cached=0, evictions=0)
    assert not pool.closed


def test_a_block_has_16_tokens_by_default() -> None:
    """block_tokens may be left out."""
    assert Pool(1, n_layers=1, n_kv_heads=1, head_dim=1).cfg.block_tokens == 16


def test_numpy_integers_are_dimensions() -> None:
    """A dimension may be of any integer type."""
    assert len(Pool(np.int64(3), np.uint8(2), n_layers=np.int32(1), n_kv_heads=1, head_dim=1)) == 3  # type: ignore[arg-type]


def test_repr_shows_shape_and_counts() -> None:
    """repr is for people: the shape and the three counts, also of a closed pool without the counts."""
    pool = busy()
    shape = "10 blocks of 2 tokens, n_layers=2, n_kv_heads=2, head_dim=3"
    assert repr(pool) == f"<Pool: {shape}; free 3, used 5, cached 2>"
    pool.close()
    assert repr(pool) == f"<Pool: {shape}; closed>"


#: every call there is, for pools that are closed
CALLS: dict[str, Callable[[Pool], Any]] = {
    "alloc": lambda p: p.alloc(),
    "alloc nothing": lambda p: p.alloc(0),
    "ref": lambda p: p.ref(0),
    "ref many": lambda p: p.ref([0]),
    "ref none": lambda p: p.ref([]),
    "unref": lambda p: p.unref(0),
    "unref many": lambda p: p.unref([0]),
    "cow": lambda p: p.cow(0),
    "fill": lambda p: p.fill(0),
    "set_fill": lambda p: p.set_fill(0, 1),
    "set_fill many": lambda p: p.set_fill([0], 1),
    "register": lambda p: p.register(1, 1),
    "register_many": lambda p: p.register_many([1], [1]),
    "lookup": lambda p: p.lookup(22),
    "lookup miss": lambda p: p.lookup(MISSING),
    "match_prefix": lambda p: p.match_prefix([22]),
    "acquire": lambda p: p.acquire([22], 1),
    "count_prefix": lambda p: p.count_prefix([22]),
    "holds": lambda p: p.holds(22),
    "evict": lambda p: p.evict(),
    "refcount": lambda p: p.refcount(0),
    "registered_hash": lambda p: p.registered_hash(0),
    "state": lambda p: p.state(0),
    "k": lambda p: p.k(0, 0),
    "v": lambda p: p.v(0, 0),
    "block": lambda p: p.block(0),
    "slab": lambda p: p.slab,
    "export": lambda p: p.export([0]),
    "export_into": lambda p: p.export_into([0], bytearray(999)),
    "export_bytes": lambda p: p.export_bytes(1),
    "import_": lambda p: p.import_(ENVELOPE),
    "stats": lambda p: p.stats(),
    "map": lambda p: p.map(),
    "with": lambda p: p.__enter__(),
}


@pytest.mark.parametrize("call", CALLS)
def test_a_closed_pool_refuses(call: str) -> None:
    """After close, twice or with `with`, every call is a ValueError that says so."""
    pool = busy()
    with pool as same:
        assert same is pool
        if call != "with":
            CALLS[call](busy())  # it works on an open one
    pool.close()
    assert pool.closed
    with pytest.raises(ValueError, match="the pool is closed"):
        CALLS[call](pool)


def test_every_member_is_tried_on_a_closed_pool() -> None:
    """The table above is whole."""
    members = {name for name in vars(Pool) if not name.startswith("_")}
    assert members - {name.split()[0] for name in CALLS} == {"close", "closed"}


def test_with_closes_after_an_error() -> None:
    """Leaving a `with` by an exception closes the pool and passes the exception on."""
    with pytest.raises(KeyError), worked() as pool:
        raise KeyError
    assert pool.closed


@pytest.mark.parametrize("do", [copy.copy, copy.deepcopy, *(lambda p, n=n: pickle.dumps(p, n) for n in range(6))])
def test_trap_21_a_pool_is_not_copied(do: Callable[[Pool], Any]) -> None:
    """copy, deepcopy and pickle of a pool are TypeErrors: two owners of one memory."""
    pool = busy()
    before = look(pool)
    with pytest.raises(TypeError, match="Pool"):
        do(pool)
    assert look(pool) == before


def test_views_and_stats_pickle_as_values() -> None:
    """What a pool gives out is pickled and copied as plain values."""
    pool = busy()
    for again in (pickle.loads(pickle.dumps(pool.block(1))), copy.deepcopy(pool.block(1))):
        assert again.tobytes() == pool.block(1).tobytes()
        assert not np.shares_memory(again, pool.slab)
    assert pickle.loads(pickle.dumps(pool.stats())) == pool.stats() == (3, 5, 2, 0)


# ---- holding blocks ----------------------------------------------------------------------------


def test_alloc_gives_ids_in_order() -> None:
    """A new pool hands out 0, 1, 2 …, later the last one freed first, then cached ones, oldest first."""
    pool = worked(4)
    ids = pool.alloc(3)
    assert ids.dtype == np.uint32
    assert ids.tolist() == [0, 1, 2]
    assert pool.alloc().tolist() == [3]
    assert future(busy())["ids"] == NEXT_IDS


def test_alloc_of_nothing() -> None:
    """alloc(0) is an empty array, in a full pool too."""
    pool = worked(1)
    pool.alloc()
    assert pool.alloc(0).tolist() == []
    assert pool.alloc(0).dtype == np.uint32


def test_alloc_of_everything_counts_evictions() -> None:
    """Cached blocks are evicted once the free ones are used up; each counts."""
    pool = busy()
    assert pool.alloc(5).tolist() == NEXT_IDS
    assert pool.stats() == (0, 10, 0, 2)
    assert [pool.refcount(id) for id in NEXT_IDS] == [1] * 5
    assert [pool.fill(id) for id in NEXT_IDS] == [0] * 5
    assert not pool.holds(44)


@pytest.mark.parametrize(
    "ids",
    [[0, 1, 1, 2], (0, 1, 1, 2), np.array([0, 1, 1, 2]), np.array([0, 9, 1, 9, 1, 9, 2], np.uint8)[::2]],
    ids=str,
)
def test_ref_and_unref_of_many(ids: Any) -> None:
    """An array of ids, of any integer type, is held and let go; an id may stand in it twice."""
    pool = busy()
    before = look(pool)
    assert pool.ref(ids) is None  # type: ignore[func-returns-value]
    assert [pool.refcount(id) for id in range(4)] == [2, 4, 2, 2]
    assert pool.unref(ids) is None  # type: ignore[func-returns-value]
    assert look(pool) == before


@pytest.mark.parametrize("id", [1, np.uint32(1), np.int64(1), np.array(1), np.array([1]), True])
def test_one_id_in_any_form(id: Any) -> None:
    """One id may be an int, a NumPy integer, or an array of one."""
    pool = busy()
    pool.ref(id)
    assert pool.refcount(1) == 3
    pool.unref(id)
    assert pool.refcount(1) == 2


def test_unref_of_nothing() -> None:
    """An empty array of ids is fine everywhere."""
    pool = busy()
    before = look(pool)
    pool.ref([])
    pool.unref([])
    pool.set_fill([], 1)
    assert pool.register_many([], []) == 0
    assert pool.match_prefix([]).tolist() == []
    assert pool.count_prefix([]) == 0
    assert look(pool) == before


def test_unref_caches_what_is_registered_and_frees_the_rest() -> None:
    """With its last holder a registered block becomes cached, any other free, with fill 0."""
    pool = busy()
    pool.unref([0, 2])
    assert (pool.state(0), pool.fill(0)) == ("free", 0)
    assert (pool.state(2), pool.fill(2)) == ("cached", 2)
    pool.unref(1)
    assert (pool.state(1), pool.refcount(1)) == ("used", 1)


def test_unref_of_an_array_releases_the_last_first() -> None:
    """Of blocks released together the last is evicted, or handed out again, as the first."""
    pool = worked(4)
    pool.unref(pool.alloc(4))
    assert pool.alloc(4).tolist() == [0, 1, 2, 3]
    pool.set_fill([0, 1, 2, 3], 2)
    pool.register_many([0, 1, 2, 3], [1, 2, 3, 4])
    pool.unref([2, 0, 3, 1])
    assert pool.alloc(4).tolist() == [1, 3, 0, 2]


def test_cow_of_an_own_block_is_the_block() -> None:
    """With one holder the block itself is the one to write to, registered or not."""
    pool = busy()
    before = look(pool)
    assert pool.cow(0) == 0
    assert pool.cow(2) == 2
    assert look(pool) == before
    assert not pool.k(2, 0).flags.writeable


@pytest.mark.parametrize("id", [1, 3])
def test_cow_copies_a_shared_block(id: int) -> None:
    """Of a shared block the caller's share moves to a copy: all bytes and the fill, not the hash."""
    pool = busy()
    bytes_before = pool.block(id).tobytes()
    new = pool.cow(id)
    assert type(new) is int
    assert new == 8
    assert (pool.refcount(id), pool.refcount(new)) == (1, 1)
    assert (pool.fill(new), pool.registered_hash(new)) == (2, 0)
    assert pool.registered_hash(id) == HASHES.get(id, 0)
    pool.block(new)[:] = -1
    assert pool.block(id).tobytes() == bytes_before


def test_cow_copies_past_the_fill() -> None:
    """The copy has all bytes, those past the fill too."""
    pool = busy()
    pool.ref(0)
    assert pool.fill(0) == 1
    expected = pool.block(0).tobytes()
    assert pool.block(pool.cow(0)).tobytes() == expected


def test_cow_in_a_full_pool() -> None:
    """A copy that finds no room raises OutOfBlocks and changes nothing; it evicts if it can."""
    pool = busy()
    pool.alloc(4)
    assert pool.cow(1) == 4  # the newest cached one was left
    assert pool.stats() == (0, 10, 0, 2)
    before = look(pool)
    with pytest.raises(OutOfBlocks, match="^tl_kv_cow: "):
        pool.cow(3)
    assert look(pool) == before


def test_fill_and_set_fill() -> None:
    """The fill is what was set last, 0 … block_tokens, for one block or many."""
    pool = busy()
    for n in (2, 0, 1):
        pool.set_fill(6, n)
        assert pool.fill(6) == n
    pool.set_fill([0, 6, 1], 2)
    assert [pool.fill(id) for id in (0, 6, 1)] == [2, 2, 2]
    pool.set_fill([0, 6, 1], [2, 0, 1])
    assert [pool.fill(id) for id in (0, 6, 1)] == [2, 0, 1]


def test_evict_drops_the_oldest() -> None:
    """evict(n) frees the n oldest cached blocks and counts them as evictions."""
    pool = busy()
    assert pool.evict(0) == 0
    assert pool.evict(1) == 1
    assert (pool.state(5), pool.state(4)) == ("free", "cached")
    assert (pool.holds(2**63), pool.holds(44)) == (False, True)
    assert pool.fill(5) == 0
    assert pool.stats() == (4, 5, 1, 1)
    assert pool.evict(99) == 1
    assert pool.stats() == (5, 5, 0, 2)


def test_evict_of_all() -> None:
    """evict() frees every cached block; held ones keep their names."""
    pool = busy()
    assert pool.evict() == 2
    assert pool.evict() == 0
    assert pool.stats() == (5, 5, 0, 2)
    assert [pool.holds(hash) for hash in HASHES.values()] == [True, True, False, False]


# ---- the prefix cache --------------------------------------------------------------------------


def test_register_and_lookup() -> None:
    """A full block is found under its hash by others, each of whom holds it."""
    pool = busy()
    assert pool.register(1, 7) is True
    assert pool.registered_hash(1) == 7
    assert pool.lookup(7) == 1
    assert pool.refcount(1) == 3
    assert pool.lookup(MISSING) is None
    assert pool.lookup(0) is None


def test_register_again_and_too_late() -> None:
    """Under its own hash again is True, under another block's is False; neither changes anything."""
    pool = busy()
    before = look(pool)
    assert pool.register(2, 22) is True
    assert pool.register(1, 22) is False
    assert pool.register(1, 44) is False  # a cached block holds its hash too
    assert look(pool) == before


def test_register_many_counts_the_new_ones() -> None:
    """A taken hash is skipped, a block's own counts 0, a hash that stands twice goes to the first."""
    pool = busy()
    pool.set_fill([0, 6], 2)
    assert pool.register_many([1, 2, 0, 6, 1], [7, 22, 44, 7, 7]) == 1
    assert [pool.registered_hash(id) for id in (0, 1, 2, 6)] == [0, 7, 22, 0]


def test_lookup_revives_a_cached_block() -> None:
    """A cached block is used again, with its contents, and is the newest when it is let go."""
    pool = busy()
    assert pool.lookup(2**63) == 5
    assert (pool.state(5), pool.refcount(5)) == ("used", 1)
    assert pool.block(5).ravel().tolist() == list(range(5 * 48, 6 * 48))
    pool.unref(5)
    assert future(pool)["ids"] == [8, 7, 9, 4, 5]


def test_match_prefix_holds_the_run() -> None:
    """Each of the run up to the first miss is held once, those behind the miss are not touched."""
    pool = busy()
    ids = pool.match_prefix([2**64 - 1, 44, MISSING, 22])
    assert ids.dtype == np.uint32
    assert ids.tolist() == [3, 4]
    assert [pool.refcount(id) for id in (3, 4, 2)] == [3, 1, 1]
    assert pool.stats() == (3, 6, 1, 0)
    assert pool.match_prefix([0, 22]).tolist() == []


def test_match_prefix_of_a_repeated_hash() -> None:
    """A hash that stands twice gives its block twice, with two references."""
    pool = busy()
    assert pool.match_prefix([44, 44]).tolist() == [4, 4]
    assert pool.refcount(4) == 2
    pool.unref([4, 4])
    assert pool.state(4) == "cached"


def test_acquire_holds_hits_and_allocates_the_rest() -> None:
    """Admission in one step: the run of hits, then fresh blocks."""
    pool = busy()
    ids, hits = pool.acquire([22, 44, MISSING, 2**64 - 1], 4)
    assert ids.dtype == np.uint32
    assert (ids.tolist(), hits) == ([2, 4, 8, 7], 2)
    assert type(hits) is int
    assert [pool.refcount(id) for id in (2, 4, 8, 7, 3)] == [2, 1, 1, 1, 2]
    assert pool.stats() == (1, 8, 1, 0)


@pytest.mark.parametrize("n, expected", [(0, []), (1, [2]), (2, [2, 3])])
def test_acquire_is_cut_at_n(n: int, expected: list[int]) -> None:
    """A run of hits longer than n is cut."""
    pool = busy()
    ids, hits = pool.acquire([22, 2**64 - 1, 44], n)
    assert (ids.tolist(), hits) == (expected, n)
    assert pool.state(4) == "cached"


def test_acquire_never_evicts_a_hit() -> None:
    """The oldest cached block is a hit: the rest comes from elsewhere, to the last block."""
    pool = busy()
    ids, hits = pool.acquire([2**63], 5)
    assert (ids.tolist(), hits) == ([5, 8, 7, 9, 4], 1)
    assert pool.stats() == (0, 10, 0, 1)


def test_acquire_more_than_the_pool_by_repetition() -> None:
    """The same hit many times is one block, many references; n may exceed the pool then."""
    pool = worked(1)
    pool.import_(WORKED)
    ids, hits = pool.acquire([transcription.block_hash(0, [1, 2])] * 50, 50)
    assert (ids.tolist(), hits) == ([0] * 50, 50)
    assert pool.refcount(0) == 51


def test_count_prefix_and_holds_move_nothing() -> None:
    """The same answers as match_prefix and lookup, without a reference and without a new eviction order."""
    pool, twin = busy(), busy()
    before = look(pool)
    assert pool.count_prefix([2**63, 44, 22, MISSING, 2**64 - 1]) == 3
    assert pool.count_prefix([MISSING, 22]) == 0
    assert pool.holds(2**63) is True
    assert pool.holds(MISSING) is False
    assert pool.holds(0) is False
    assert look(pool) == before
    assert future(pool) == future(twin)


# ---- looking -----------------------------------------------------------------------------------


def test_stats_is_a_named_tuple() -> None:
    """stats() is a snapshot with names, which a later call does not change."""
    pool = busy()
    stats = pool.stats()
    pool.alloc(5)
    assert (stats.free, stats.used, stats.cached, stats.evictions) == tuple(stats) == (3, 5, 2, 0)


def test_map_draws_a_cell_a_block() -> None:
    """Free is a dot, used a hash, cached a ring; the last line counts them."""
    assert busy().map() == "####oo#...\n. free 3  # used 5  o cached 2"


def test_map_breaks_lines() -> None:
    """64 cells are a line."""
    lines = worked(130).map().splitlines()
    assert [len(line) for line in lines[:-1]] == [64, 64, 2]


@pytest.mark.parametrize("n", [2047, 2048, 2049, 100_003])
def test_map_is_bounded(n: int) -> None:
    """However large the pool, the map has 32 lines of 64 cells at most, and shows the busiest block of a cell."""
    pool = Pool(n, 1, n_layers=1, n_kv_heads=1, head_dim=1)
    pool.alloc(n - 1)
    pool.unref(np.arange(1, n - 1, dtype=np.uint32))
    *lines, legend = pool.map().splitlines()
    assert len(lines) <= 32
    assert max(map(len, lines)) == 64
    assert lines[0][0] == "#"
    assert set("".join(lines)) == {"#", "."}
    assert f"free {n - 1}  # used 1  o cached 0" in legend
    assert ("blocks a cell" in legend) == (n > 2048)


# ---- the envelope ------------------------------------------------------------------------------


def test_export_is_the_independent_envelope() -> None:
    """A partial and a registered block give the bytes that the plain transcription of the format gives."""
    pool = busy()
    expected = b"TLKV" + struct.pack("<HHIIIII", 1, 1, 2, 2, 2, 2, 3)
    for id, fill, hash in [(0, 1, 0), (3, 2, 2**64 - 1)]:
        rows = pool.block(id).copy()
        rows[..., fill:, :] = 0
        expected += struct.pack("<QI", hash, fill) + rows.astype("<f2").tobytes()
    expected += struct.pack("<I", transcription.crc32c(expected))
    envelope = pool.export([0, 3])
    assert type(envelope) is bytes
    assert envelope == expected
    assert pool.export_bytes(2) == len(expected)
    assert pool.export(np.array([0, 3])) == expected


def test_export_of_nothing_and_of_the_same_twice() -> None:
    """No ids give the 32-byte envelope; an id may stand twice."""
    pool = busy()
    assert len(pool.export([])) == pool.export_bytes(0) == 32
    once, twice = pool.export([1]), pool.export([1, 1])
    assert len(twice) == pool.export_bytes(2)
    assert twice[28:-4] == once[28:-4] * 2


def test_export_of_one_id() -> None:
    """An id alone is an array of one."""
    assert busy().export(1) == busy().export([1])


@pytest.mark.parametrize(
    "make",
    [bytearray, lambda n: np.zeros(n, np.uint8), lambda n: memoryview(bytearray(n)), lambda n: mmap.mmap(-1, n)],
)
def test_export_into_any_writable_buffer(make: Callable[[int], Any]) -> None:
    """The envelope goes to the start of the buffer, and nothing is written past it."""
    pool = busy()
    expected = pool.export([1, 0])
    buffer = make(300)
    memoryview(buffer).cast("B")[:] = b"\x5a" * 300
    assert pool.export_into([1, 0], buffer) == len(expected)
    assert bytes(memoryview(buffer)) == expected + b"\x5a" * (300 - len(expected))


def test_import_gives_held_filled_registered_blocks() -> None:
    """Imported blocks are held, filled, with their bytes, and full ones are found under their hashes."""
    source, pool = busy(), Pool(4, 2, **SHAPE)
    ids = pool.import_(source.export([3, 0]))
    assert ids.dtype == np.uint32
    assert ids.tolist() == [0, 1]
    assert [pool.refcount(id) for id in ids] == [1, 1]
    assert [pool.fill(id) for id in ids] == [2, 1]
    assert [pool.registered_hash(id) for id in ids] == [2**64 - 1, 0]
    assert pool.block(0).tobytes() == source.block(3).tobytes()
    assert pool.export(ids) == source.export([3, 0])


def test_import_keeps_the_first_holder() -> None:
    """A hash that is held already, in the pool or earlier in the envelope, leaves a private copy."""
    pool = busy()
    ids = pool.import_(pool.export([2, 2]))
    assert [pool.registered_hash(id) for id in ids] == [0, 0]
    assert pool.lookup(22) == 2
    other = Pool(4, 2, **SHAPE)
    ids = other.import_(pool.export([2, 2]))
    assert [other.registered_hash(id) for id in ids] == [22, 0]


def test_import_evicts_and_registers_anew() -> None:
    """A hash whose holder was evicted to make the room is registered again."""
    envelope = busy().export([3, 3, 3, 3, 3])
    pool = busy()
    pool.unref([3, 3])  # cached, the newest: 3 free and 3 cached
    ids = pool.import_(envelope)
    assert pool.stats() == (0, 9, 1, 2)
    assert [pool.registered_hash(id) for id in ids] == [0] * 5
    pool.unref(ids)
    pool.evict()
    ids = pool.import_(envelope)
    assert pool.registered_hash(int(ids[0])) == 2**64 - 1


def test_import_of_an_empty_envelope() -> None:
    """An envelope of no blocks gives no ids, in a full pool too."""
    pool = worked(1)
    pool.alloc()
    assert pool.import_(pool.export([])).tolist() == []


def test_the_package_says_its_version() -> None:
    """__version__ is the version of the distribution that is installed."""
    from importlib.metadata import version

    assert tinyllm_kv.__version__ == version("tinyllm-kv")


def test_ids_may_lie_in_the_buffer() -> None:
    """An envelope may be written over the very array that names its blocks."""
    pool = busy()
    envelope = pool.export([1, 0])
    buffer = np.zeros(len(envelope), np.uint8)
    ids = buffer[:8].view(np.uint32)
    ids[:] = 1, 0
    assert pool.export_into(ids, buffer) == len(envelope)
    assert buffer.tobytes() == envelope


def test_a_refused_export_takes_no_memory() -> None:
    """Ids are looked at before an envelope of that many blocks is made: MemoryError would be the sign of one."""
    pool = Pool(4, 1024, n_layers=16, n_kv_heads=16, head_dim=256)  # blocks of 256 MiB
    with pytest.raises(tinyllm_kv.InvalidArgument, match="block 99 is out of range"):
        pool.export(np.full(10**6, 99, np.uint32))


@pytest.mark.parametrize(
    "call, words",
    [
        (lambda p: p.ref(-7), "block -7 is out of range"),
        (lambda p: p.alloc(-5), "-5 blocks asked for"),
        (lambda p: p.set_fill(0, -9), "-9 tokens"),
        (lambda p: p.k(-3, 0), "block -3 is out of range"),
        (lambda p: p.evict(-2), "-2 blocks to evict"),
    ],
)
def test_a_message_has_the_number_given(call: Callable[[Pool], Any], words: str) -> None:
    """A refusal shows what the caller said."""
    with pytest.raises(tinyllm_kv.InvalidArgument, match=words):
        call(busy())


class Zero:
    """Something that stands for 0."""

    def __index__(self) -> int:
        return 0


@pytest.mark.parametrize("one", [0, np.uint8(0), np.int64(0), np.array(0), np.array(0, np.uint64), Zero()])
def test_whatever_has_an_index_is_a_number(one: Any) -> None:
    """All that stands for an integer is one block, in every call."""
    pool = busy()
    before = pool.refcount(0)
    pool.ref(one)
    assert pool.refcount(one) == before + 1
    pool.unref(one)
    assert (pool.refcount(one), pool.state(one), pool.fill(one)) == (before, "used", pool.fill(0))
    pool.set_fill([0, 6], one)
    pool.set_fill(one, one)
    assert pool.fill(0) == pool.fill(6) == 0


def test_a_notebook_shows_shape_counts_and_colours() -> None:
    """In HTML a pool shows its repr, a coloured cell a block, and the count of each state."""
    pool = Pool(70, 2, **SHAPE)
    pool.alloc(3)
    shown = pool._repr_html_()
    assert "&lt;Pool: 70 blocks" in shown and "free 67, used 3, cached 0&gt;" in shown
    assert "free 67" in shown and "used 3" in shown and "cached 0" in shown
    drawn = shown.partition("monospace")[2].partition("</div>")[0]
    assert drawn.count("&nbsp;") == 70
    assert [line.count("&nbsp;") for line in drawn.split("<br>")] == [64, 6]
    first, rest = drawn.split("</span>")[:2]
    assert (first.count("&nbsp;"), rest.count("&nbsp;")) == (3, 61)
    assert first.partition("background:")[2][:7] != rest.partition("background:")[2][:7]


def test_a_notebook_shows_a_large_pool_in_bounded_size() -> None:
    """However many blocks there are, 2,048 cells are drawn at most, and a block in use is seen."""
    pool = Pool(1_000_000, 1, n_layers=1, n_kv_heads=1, head_dim=1)
    pool.alloc(1)
    shown = pool._repr_html_()
    assert shown.count("&nbsp;") <= 2048 + 6
    assert "489 blocks a cell" in shown and "used 1" in shown
    assert len(shown) < 20_000
    assert shown.count("<br>") < 32


def test_a_closed_pool_shows_itself_in_a_notebook() -> None:
    """What is closed has no map, and says so."""
    pool = Pool(3, 2, **SHAPE)
    pool.close()
    assert "closed&gt;" in pool._repr_html_()

"""PagedKVCache, rule by rule; random interleavings are in test_paged_random.py."""

from __future__ import annotations

import copy
import pickle
import tracemalloc
import warnings

import numpy as np
import pytest
from paged_model import snapshot
from parity.transcription import block_hash
from tinyllm_kv import (
    EnvelopeError,
    InvalidArgument,
    OutOfBlocks,
    PagedKVCache,
    Pool,
    ShapeError,
    block_hashes,
    namespace,
)

TOKENS = [1, 2, 3, 4, 5]
H0, H1 = block_hash(0, [1, 2]), block_hash(block_hash(0, [1, 2]), [3, 4])


@pytest.fixture
def cache():
    with PagedKVCache(8, 2, 2, 2, 3) as made:
        yield made


def rows(n, first=0, heads=2, dim=3):
    """Return k and v of n positions, each element telling which it is."""
    k = np.arange(first, first + n)[None, :, None] * 100 + np.arange(heads)[:, None, None] * 10 + np.arange(dim)
    return k.astype(np.float16), -k.astype(np.float16)


def put(cache, seq, n, layers=(0, 1), first=None):
    for layer in layers:
        cache.append(seq, layer, *rows(n, cache.seq_len(seq, layer) if first is None else first))


def prompt(cache, seq, tokens, **named):
    """Add a sequence with a prompt and compute what is missing."""
    reused = cache.add_seq(seq, tokens, **named)
    if len(tokens) > reused:
        put(cache, seq, len(tokens) - reused)
    return reused


# ---- a new cache ----------------------------------------------------------


def test_attributes_are_the_arguments(cache):
    """The shape is readable under the names of the arguments, and the pool has it."""
    assert (cache.num_blocks, cache.block_size, cache.n_layers, cache.n_kv_heads, cache.d_head) == (8, 2, 2, 2, 3)
    assert isinstance(cache.pool, Pool) and cache.pool.cfg[:5] == (8, 2, 2, 2, 3)


def test_counts_of_a_new_cache(cache):
    """All blocks are free."""
    assert cache.stats() == {"free": 8, "used": 0, "cached": 0, "evictions": 0}
    assert cache.num_free_blocks() == 8


def test_a_new_sequence_is_empty(cache):
    """No blocks, no positions, arrays without positions; it exports and imports as nothing."""
    assert cache.add_seq("a") == 0
    assert cache.block_table("a").shape == (0,) and cache.block_table("a").dtype == np.int32
    assert [cache.seq_len("a", layer) for layer in (0, 1)] == [0, 0]
    assert [part.shape for part in cache.gather("a", 1)] == [(2, 0, 3)] * 2
    assert len(cache.export_seq("a")) == 32
    cache.import_seq("b", cache.export_seq("a"))
    assert cache.seq_len("b") == 0 and cache.stats()["used"] == 0


def test_any_hashable_is_an_id(cache):
    """Numbers, strings, tuples and None; what is equal is one id."""
    for seq_id in (0, "0", (0,), None, frozenset()):
        cache.add_seq(seq_id)
    with pytest.raises(ValueError, match="add_seq"):
        cache.add_seq(np.int64(0))


def test_close_refuses_what_needs_the_pool(cache):
    """After close, twice or at the end of with, calls raise ValueError and repr still works."""
    prompt(cache, "a", TOKENS)
    cache.close()
    cache.close()
    for call in (
        lambda: cache.add_seq("b"),
        lambda: cache.fork("a", "b"),
        lambda: cache.append("a", 0, *rows(1)),
        lambda: cache.append_batch(["a"], 0, np.ones((1, 2, 3)), np.ones((1, 2, 3))),
        lambda: cache.gather("a", 0),
        lambda: cache.free("a"),
        lambda: cache.export_seq("a"),
        lambda: cache.stats(),
        lambda: cache.num_free_blocks(),
    ):
        with pytest.raises(ValueError, match="closed"):
            call()
    assert "closed" in repr(cache) and "1 sequences" in repr(cache)


def test_with_refuses_a_closed_cache(cache):
    """with on a closed cache is a ValueError, as on a closed pool."""
    cache.close()
    with pytest.raises(ValueError, match="closed"), cache:
        pass


@pytest.mark.parametrize("do", [copy.copy, copy.deepcopy, pickle.dumps, lambda c: pickle.dumps(c, 0)])
def test_a_cache_is_not_copied(cache, do):
    """copy, deepcopy and pickle are TypeErrors that name the cache, as for a pool."""
    with pytest.raises(TypeError, match="PagedKVCache"):
        do(cache)


# ---- prompts and prefix reuse ---------------------------------------------


@pytest.mark.parametrize(("n", "reused"), [(0, 0), (1, 0), (2, 0), (3, 2), (4, 2), (5, 4)])
def test_the_last_token_is_left_to_compute(cache, n, reused):
    """Of a cached prompt of n tokens, the full blocks of the first n - 1 are taken over, in every layer."""
    prompt(cache, "first", TOKENS)
    assert cache.add_seq("again", TOKENS[:n]) == reused
    assert [cache.seq_len("again", layer) for layer in (0, 1)] == [reused, reused]
    assert cache.block_table("again").tolist() == cache.block_table("first").tolist()[: reused // 2]
    if n:
        put(cache, "again", n - reused)
        for layer in (0, 1):
            for mine, other in zip(cache.gather("again", layer), cache.gather("first", layer), strict=True):
                assert mine.tobytes() == other[:, :n].tobytes()


@pytest.mark.parametrize("n", range(6))
def test_a_prompt_is_registered_block_by_block(cache, n):
    """A prompt of n tokens with blocks of 2 has its full blocks under the chained hashes, and no other."""
    prompt(cache, "a", TOKENS[:n])
    names = [cache.pool.registered_hash(block) for block in cache.block_table("a")]
    assert names == [H0, H1, 0][: n // 2] + [0] * (n % 2)


def test_a_hole_ends_the_reuse(cache):
    """With the first block evicted the second is not taken over, though it is still cached."""
    prompt(cache, "a", TOKENS)
    cache.fork("a", "b")
    first, second = cache.block_table("a").tolist()[:2]
    for seq in ("a", "b"):
        cache.free(seq)
    cache.pool.ref(cache.pool.match_prefix([H1]))  # the tail was cached first: used again, the head is the oldest
    cache.pool.evict(1)
    assert cache.pool.state(first) == "free" and cache.pool.holds(H1)
    assert cache.add_seq("c", TOKENS) == 0
    assert cache.pool.refcount(second) == 2


def test_two_identical_prompts_side_by_side(cache):
    """The second is a private copy without names, and both go on under one chain of names."""
    for seq in ("a", "b"):
        assert cache.add_seq(seq, TOKENS) == 0
    for seq in ("a", "b"):
        put(cache, seq, 5)
    a, b = cache.block_table("a").tolist(), cache.block_table("b").tolist()
    assert not set(a) & set(b)
    assert [cache.pool.registered_hash(block) for block in a + b] == [H0, H1, 0, 0, 0, 0]
    cache.extend_tokens("b", [6])
    put(cache, "b", 1)
    assert cache.pool.registered_hash(b[2]) == block_hash(H1, [5, 6])
    cache.free("b")
    assert cache.stats() == {"free": 4, "used": 3, "cached": 1, "evictions": 0}
    cache.free("a")
    assert cache.add_seq("c", [*TOKENS, 6, 7]) == 6


def test_free_lets_go_of_the_tail_first(cache):
    """Under pressure the prompt's last block goes first, and the rest still matches."""
    prompt(cache, "a", [1, 2, 3, 4, 5, 6])
    cache.free("a")
    assert cache.stats()["cached"] == 3
    cache.pool.alloc(6)  # all free ones and one cached
    assert cache.add_seq("b", [1, 2, 3, 4, 5, 6, 7]) == 4


def test_namespaces_share_nothing(cache):
    """The same prompt of two adapters, and of none, meets only its own blocks."""
    one, two = namespace("adapter", 1), namespace("adapter", "1")
    for parent in (0, one, two):
        assert prompt(cache, parent, [1, 2, 3], parent=parent) == 0
    assert cache.pool.registered_hash(cache.block_table(one)[0]) == block_hash(one, [1, 2])
    for parent in (None, one, two):
        assert cache.add_seq(("again", parent), [1, 2, 3], parent=parent) == 2
        assert cache.block_table(("again", parent)).tolist() == cache.block_table(parent or 0).tolist()[:1]


# ---- extend_tokens --------------------------------------------------------


def test_a_block_is_named_once_it_is_full_and_known(cache):
    """Tokens before their positions, after them, and one by one give the same names."""
    for seq in ("before", "after", "by one"):
        cache.add_seq(seq, [1], parent=namespace(seq))
    cache.extend_tokens("before", [2, 3, 4, 5])
    put(cache, "before", 4)
    put(cache, "after", 4)
    assert not cache.pool.registered_hash(cache.block_table("after")[0])
    cache.extend_tokens("after", np.array([2, 3, 4, 5], np.int64))
    for token in (2, 3, 4, 5):
        put(cache, "by one", 1, layers=(1,))
        put(cache, "by one", 1, layers=(0,))
        cache.extend_tokens("by one", [token])
    for seq in ("before", "after", "by one"):
        names = [cache.pool.registered_hash(block) for block in cache.block_table(seq)]
        first = block_hash(namespace(seq), [1, 2])
        assert names == [first, block_hash(first, [3, 4])]


def test_the_last_layer_decides(cache):
    """Fill and name follow the layer that is behind."""
    cache.add_seq("a", TOKENS)
    put(cache, "a", 5, layers=(0,))
    table = cache.block_table("a")
    assert [cache.pool.fill(block) for block in table] == [0, 0, 0] and not cache.pool.holds(H0)
    put(cache, "a", 3, layers=(1,))
    assert [cache.pool.fill(block) for block in table] == [2, 1, 0]
    assert cache.pool.holds(H0) and not cache.pool.holds(H1)
    put(cache, "a", 2, layers=(1,))
    assert [cache.pool.fill(block) for block in table] == [2, 2, 1] and cache.pool.holds(H1)


def test_other_tokens_for_a_shared_block_are_refused(cache):
    """A fork cannot rename a block that it shares."""
    cache.add_seq("a")
    put(cache, "a", 2)
    cache.fork("a", "b")
    cache.extend_tokens("a", [1, 2])
    with pytest.raises(InvalidArgument):
        cache.extend_tokens("b", [3, 4])
    cache.extend_tokens("b", [1, 2])
    assert cache.pool.registered_hash(cache.block_table("b")[0]) == H0


# ---- forks ----------------------------------------------------------------


def test_a_fork_shares_until_one_writes(cache):
    """A mid-block fork copies its last block alone; the last holder then writes in place."""
    prompt(cache, "a", TOKENS)
    cache.fork("a", "b")
    table = cache.block_table("a").tolist()
    assert cache.block_table("b").tolist() == table and cache.stats()["used"] == 3
    put(cache, "b", 1, first=50)
    assert cache.block_table("a").tolist() == table
    assert cache.block_table("b").tolist()[:2] == table[:2] and cache.block_table("b")[2] != table[2]
    put(cache, "a", 1, first=60)
    assert cache.block_table("a").tolist() == table and cache.stats()["used"] == 4
    for seq, first in (("a", 60), ("b", 50)):
        for layer in (0, 1):
            for part, old, new in zip(cache.gather(seq, layer), rows(5), rows(1, first), strict=True):
                assert part.tobytes() == np.concatenate([old, new], axis=1).tobytes()


def test_a_fork_whose_layers_differ(cache):
    """A layer that is behind copies every shared block that it writes into, once for all layers."""
    cache.add_seq("a", TOKENS)
    put(cache, "a", 5, layers=(0,))
    put(cache, "a", 1, layers=(1,))
    cache.fork("a", "b")
    put(cache, "b", 4, layers=(1,))
    assert not set(cache.block_table("a").tolist()) & set(cache.block_table("b").tolist())
    assert [cache.pool.fill(block) for block in cache.block_table("a")] == [1, 0, 0]
    assert [cache.pool.fill(block) for block in cache.block_table("b")] == [2, 2, 1]
    assert cache.pool.registered_hash(cache.block_table("b")[1]) == H1
    for layer in (0, 1):
        assert cache.gather("b", layer)[0].tobytes() == rows(5)[0].tobytes()
    assert cache.gather("a", 1)[0].tobytes() == rows(1)[0].tobytes()


@pytest.mark.parametrize("extra", [0, 1])
def test_all_holders_in_one_batch(cache, extra):
    """Of n holders that all write, n - 1 copy; with one more that does not, all n."""
    prompt(cache, 0, [1])
    for child in range(1, 3 + extra):
        cache.fork(0, child)
    k = np.arange(3 * 2 * 3, dtype=np.float16).reshape(3, 2, 3)
    cache.append_batch([0, 1, 2], 0, k, -k)
    assert cache.stats()["used"] == 3 + extra
    assert len({cache.block_table(seq)[0] for seq in range(3 + extra)}) == 3 + extra
    for seq in range(3):
        assert cache.gather(seq, 0)[0][:, 1].tobytes() == k[seq].tobytes()
        assert cache.gather(seq, 0)[0][:, 0].tobytes() == rows(1)[0].tobytes()


def test_a_block_held_by_hand_is_not_written_to(cache):
    """What somebody holds through the pool stays as it is."""
    prompt(cache, "a", [1])
    block = int(cache.block_table("a")[0])
    cache.pool.ref(block)
    before = cache.pool.slab[block].tobytes()
    put(cache, "a", 1)
    assert cache.pool.slab[block].tobytes() == before and cache.block_table("a")[0] != block


def test_an_interrupted_copy_leaves_no_table_wrong(cache, monkeypatch):
    """An interrupt right after the shared block is let go: each table names blocks that its sequence holds."""
    prompt(cache, "a", TOKENS)
    cache.fork("a", "b")
    before = cache.gather("a", 0)[0].tolist()
    unref = cache.pool.unref

    def interrupted(ids):
        unref(ids)
        raise KeyboardInterrupt

    monkeypatch.setattr(cache.pool, "unref", interrupted)
    with pytest.raises(KeyboardInterrupt):
        put(cache, "b", 1)
    monkeypatch.undo()
    tables = np.concatenate([cache.block_table(seq) for seq in "ab"])
    blocks, names = np.unique(tables, return_counts=True)
    assert (cache.pool.refcount(blocks) >= names).all()
    put(cache, "b", 1)
    assert cache.gather("a", 0)[0].tolist() == before


def test_the_copy_has_its_fill(cache):
    """A copy that one layer writes to states the positions that every layer holds."""
    prompt(cache, "a", [1])
    cache.fork("a", "b")
    put(cache, "b", 1, layers=(0,))
    assert cache.pool.fill(int(cache.block_table("b")[0])) == 1
    assert cache.export_seq("b") == cache.export_seq("a")


# ---- a full pool ----------------------------------------------------------


@pytest.mark.parametrize("cached", [0, 2])
@pytest.mark.parametrize("room", range(4))
@pytest.mark.parametrize("batch", [False, True])
def test_a_full_pool_at_every_point_of_append(batch, room, cached):
    """An append that needs a copy and two blocks refuses with less room, and then evicts and changes nothing."""
    with PagedKVCache(3 + room + max(0, cached - room), 2, 2, 2, 3) as cache:
        names = [block_hash(0, [9, i]) for i in range(min(cached, room))]
        prompt(cache, "a", [1])
        cache.fork("a", "b")
        for seq in ("c", "d"):
            prompt(cache, seq, [3, 4], parent=namespace(seq))
        for i, name in enumerate(names):  # what may be evicted, the oldest first
            prompt(cache, i, [9, i])
            assert cache.pool.holds(name)
        blocked = cache.pool.alloc(cache.num_free_blocks() - (room - len(names)))
        for i in range(len(names)):
            cache.free(i)
        assert cache.num_free_blocks() == room
        live = ["a", "b", "c", "d"]
        before = snapshot(cache, live)

        def attempt():
            if batch:
                cache.append_batch(["b", "c", "d"], 1, np.ones((3, 2, 3)), np.ones((3, 2, 3)))
            else:
                cache.append("b", 1, *rows(5))

        if room < 3:
            with pytest.raises(OutOfBlocks):
                attempt()
            assert snapshot(cache, live) == before
            for left in range(len(names), 0, -1):  # the eviction order is what it was
                cache.pool.evict(1)
                assert cache.pool.count_prefix(names[len(names) - left + 1 :]) == left - 1
        else:
            attempt()
            assert cache.num_free_blocks() == 0 and cache.seq_len("b", 1) == (2 if batch else 6)
            assert cache.stats()["evictions"] == len(names)
        cache.pool.unref(blocked)


# ---- numbers --------------------------------------------------------------

LONG = np.longdouble


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize(
    ("given", "stored"),
    [
        (np.float32([1 + 2**-11, 1 + 3 * 2**-11, 2**-25, 3 * 2**-25]), [1, 1 + 2**-9, 0, 2**-23]),  # ties to even
        (np.float32([65519.0, 65520.0, -65520.0, np.inf]), [65504, np.inf, -np.inf, np.inf]),
        (np.float64([1 + 2**-11 + 2**-40, 1 + 2**-11 - 2**-40, 1e300]), [1 + 2**-10, 1, np.inf]),
        (LONG([1, 1, -1]) + LONG([2**-11, 2**-11, -(2**-11)]) + LONG([2**-60, -(2**-60), -(2**-60)]),
         [1 + 2**-10, 1, -1 - 2**-10]),  # by way of float64 these are ties
        (np.array([LONG("1e4000"), LONG("-1e4000"), LONG("1e-4000")]), [np.inf, -np.inf, 0]),
        (np.array([1.5, -0.0, np.nan], ">f4"), [1.5, -0.0, np.nan]),
        ([0.1, 2.0], [0.0999755859375, 2.0]),
    ],
    ids=["float32", "overflow", "float64", "longdouble", "longdouble range", "big-endian", "list"],
)  # fmt: skip
def test_floats_are_rounded_once_to_nearest_even(given, stored):
    """Each float type is stored as the nearest float16; overflow is infinite and silent, errors or not."""
    with PagedKVCache(4, 2, 1, 1, len(stored)) as cache:
        cache.add_seq("a")
        row = given if isinstance(given, list) else given.reshape(1, 1, -1)
        with np.errstate(all="raise"):
            cache.append("a", 0, [[row]] if isinstance(given, list) else row, np.zeros((1, 1, len(stored))))
            cache.append_batch(["a"], 0, np.zeros((1, 1, len(stored))), [[given]] if isinstance(given, list) else row)
        expected = np.array(stored, np.float64)
        for part in (cache.gather("a", 0)[0][0, 0], cache.gather("a", 0)[1][0, 1]):
            np.testing.assert_array_equal(part.astype(np.float64), expected)
            np.testing.assert_array_equal(np.signbit(part), np.signbit(expected))


def test_any_layout_of_an_array_is_read_right(cache):
    """Strided, reversed, Fortran-ordered and read-only arrays."""
    k, v = rows(3)
    for seq, make in {
        "strided": lambda x: np.repeat(x, 2, axis=2)[:, :, ::2],
        "reversed": lambda x: x[::-1, ::-1].copy()[::-1, ::-1],
        "fortran": np.asfortranarray,
        "fixed": lambda x: np.frombuffer(x.tobytes(), np.float16).reshape(x.shape),
        "wide": lambda x: x.astype(np.float64).transpose(2, 1, 0).copy().transpose(2, 1, 0),
    }.items():
        cache.add_seq(seq)
        cache.append(seq, 0, make(k), make(v))
        assert [part.tobytes() for part in cache.gather(seq, 0)] == [k.tobytes(), v.tobytes()]
        cache.free(seq)


def test_views_of_the_pool_are_read_as_they_were():
    """Keys and values from the cache's own blocks, which the append writes to, arrive unchanged."""
    with PagedKVCache(4, 4, 1, 1, 1) as cache:
        cache.add_seq("a")
        cache.append("a", 0, *np.full((2, 1, 1, 1), 10, np.float16))
        source = cache.pool.k(cache.block_table("a")[0], 0)[:, :3]
        source[0, 1:, 0] = 20, 30
        cache.append("a", 0, source, source)
        assert [part.ravel().tolist() for part in cache.gather("a", 0)] == [[10, 10, 20, 30]] * 2


def test_a_batch_from_views_of_the_pool():
    """What is written for the first sequence lies where the second's keys are read: they are those of before."""
    with PagedKVCache(4, 4, 1, 1, 1) as cache:
        for seq in "ab":
            cache.add_seq(seq)
            cache.append(seq, 0, *np.zeros((2, 1, 1, 1), np.float16))
        source = cache.pool.slab[cache.block_table("a")[0], 0, 0, 0, :2].reshape(2, 1, 1)
        source[:] = [[[10]], [[20]]]
        cache.append_batch(["a", "b"], 0, source, source)
        assert [cache.gather(seq, 0)[0][0, 1, 0] for seq in "ab"] == [10, 20]


def test_gather_copies(cache):
    """What gather returns is the caller's own, and contiguous."""
    prompt(cache, "a", TOKENS)
    k, _ = cache.gather("a", 0)
    k[:] = 7
    assert k.flags.c_contiguous and cache.gather("a", 0)[0].tobytes() == rows(5)[0].tobytes()


# ---- refusals -------------------------------------------------------------

ONE = np.ones((2, 1, 3))
STEP = np.ones((2, 2, 3))
REFUSALS = [
    (KeyError, "append", lambda c: c.append("x", 0, ONE, ONE)),
    (KeyError, "append_batch", lambda c: c.append_batch(["a", "x"], 0, STEP, STEP)),
    (KeyError, "extend_tokens", lambda c: c.extend_tokens("x", [1])),
    (KeyError, "fork", lambda c: c.fork("x", "y")),
    (KeyError, "gather", lambda c: c.gather("x", 0)),
    (KeyError, "block_table", lambda c: c.block_table("x")),
    (KeyError, "seq_len", lambda c: c.seq_len("x")),
    (KeyError, "free", lambda c: c.free("x")),
    (KeyError, "export_seq", lambda c: c.export_seq("x")),
    (ValueError, "add_seq", lambda c: c.add_seq("a", [1])),
    (ValueError, "fork", lambda c: c.fork("a", "b")),
    (ValueError, "fork", lambda c: c.fork("a", "a")),
    (ValueError, "import_seq", lambda c: c.import_seq("a", c.export_seq("b"))),
    (ValueError, "append", lambda c: c.append("a", 2, ONE, ONE)),
    (ValueError, "append", lambda c: c.append("a", -1, ONE, ONE)),
    (ValueError, "append_batch", lambda c: c.append_batch(["a", "b"], 2, STEP, STEP)),
    (ValueError, "append_batch", lambda c: c.append_batch(["a", "b"], -1, STEP, STEP)),
    (ValueError, "gather", lambda c: c.gather("a", 2)),
    (ValueError, "seq_len", lambda c: c.seq_len("a", -1)),
    (ValueError, "append", lambda c: c.append("a", 0, ONE[:, :0], ONE[:, :0])),
    (ValueError, "append", lambda c: c.append("a", 0, ONE, np.ones((2, 2, 3)))),
    (ValueError, "append", lambda c: c.append("a", 0, ONE[:1], ONE[:1])),
    (ValueError, "append", lambda c: c.append("a", 0, ONE[:, :, :2], ONE[:, :, :2])),
    (ValueError, "append", lambda c: c.append("a", 0, ONE[:, 0], ONE[:, 0])),
    (ValueError, "append", lambda c: c.append("a", 0, 1.0, 1.0)),
    (ValueError, "append_batch", lambda c: c.append_batch(["a", "b"], 0, STEP[:1], STEP[:1])),
    (ValueError, "append_batch", lambda c: c.append_batch(["a", "b"], 0, STEP, STEP[:, :, :2])),
    (ValueError, "append_batch", lambda c: c.append_batch(["a", "a"], 0, STEP, STEP)),
    (TypeError, "append", lambda c: c.append("a", 0.0, ONE, ONE)),
    (TypeError, "append", lambda c: c.append("a", 0, ONE.astype(int), ONE)),
    (TypeError, "append", lambda c: c.append("a", 0, ONE, ONE.astype(complex))),
    (TypeError, "append", lambda c: c.append("a", 0, ONE.astype(bool), ONE)),
    (TypeError, "append", lambda c: c.append("a", 0, ONE.astype(object), ONE)),
    (TypeError, "append", lambda c: c.append("a", 0, ONE.astype("V2"), ONE)),
    (TypeError, "append_batch", lambda c: c.append_batch(["a", "b"], 0, STEP, STEP.astype(np.uint8))),
    (TypeError, "add_seq", lambda c: c.add_seq("x", [1.5])),
    (TypeError, "add_seq", lambda c: c.add_seq("x", [1], parent=0.0)),
    (OverflowError, "add_seq", lambda c: c.add_seq("x", [-1])),
    (OverflowError, "add_seq", lambda c: c.add_seq("x", [1], parent=2**64)),
    (TypeError, "extend_tokens", lambda c: c.extend_tokens("a", [1.5])),
    (OverflowError, "extend_tokens", lambda c: c.extend_tokens("a", [6, 2**32])),
    (TypeError, "import_seq", lambda c: c.import_seq("x", c.export_seq("a"), [1.5])),
]


@pytest.mark.parametrize(("error", "call", "attempt"), REFUSALS, ids=range(len(REFUSALS)))
def test_a_refusal_names_the_call_and_changes_nothing(cache, error, call, attempt):
    """Unknown and live ids, bad layers, shapes, types and tokens."""
    prompt(cache, "a", TOKENS)
    cache.fork("a", "b")
    before = snapshot(cache, "ab")
    with pytest.raises(error, match=rf"PagedKVCache\.{call}: ") as caught:
        attempt(cache)
    assert error is ValueError or type(caught.value) is error
    assert snapshot(cache, "ab") == before
    with pytest.raises(KeyError):
        cache.seq_len("x")


# ---- many sequences -------------------------------------------------------


def test_tables_grow_with_sequences_and_with_length():
    """A hundred sequences of growing lengths, half of them ended and begun again."""
    with PagedKVCache(4000, 2, 1, 1, 1) as cache:
        lengths = {}
        for seq in range(100):
            lengths[seq] = seq + 1
            cache.add_seq(seq)
            cache.append(seq, 0, *(np.full((1, seq + 1, 1), seq + s, np.float16) for s in (0, 0.5)))
        for seq in range(0, 100, 2):
            cache.free(seq)
            cache.add_seq(seq)
            lengths[seq] = 0
        cache.append_batch(range(100), 0, *(np.arange(100).reshape(-1, 1, 1) + s for s in (0.0, 0.5)))
        for seq, length in lengths.items():
            k, v = cache.gather(seq, 0)
            assert k.shape == (1, length + 1, 1) and (k == seq).all() and (v == seq + 0.5).all()
        assert cache.stats()["used"] == sum(length // 2 + 1 for length in lengths.values())
        for seq in lengths:
            cache.free(seq)
        assert cache.stats()["free"] == 4000


def refused(cache, call, *arguments):
    """Return the most bytes that a refused call had at one time beyond those of before, and left behind."""
    tracemalloc.start()
    try:
        with pytest.raises(OutOfBlocks, match=rf"PagedKVCache\.{call}: "):
            getattr(cache, call)(*arguments)
        left, most = tracemalloc.get_traced_memory()
        return most, left
    finally:
        tracemalloc.stop()


def test_a_refused_call_takes_no_memory():
    """What can never fit, or does not fit now, does not make the tables of a thousand sequences longer."""
    with PagedKVCache(64, 1, 1, 1, 1) as cache, PagedKVCache(20_000, 1, 1, 1, 1) as other:
        for seq in range(1000):
            cache.add_seq(seq)
        one = np.zeros((1, 1, 1), np.float16)
        for n, seq in ((50_000, 0), (64, 1)):
            cache.append(seq, 0, one, one)
            many = np.zeros((1, n, 1), np.float16)
            most, left = refused(cache, "append", seq, 0, many, many)
            assert left < 50_000 and most < 100 * n + 50_000  # in proportion to the call, not to the sequences
        other.add_seq("long")
        other.append("long", 0, *np.zeros((2, 1, 20_000, 1), np.float16))
        most, left = refused(cache, "import_seq", "long", other.export_seq("long"))
        assert left < 50_000 and most < 5_000_000
        assert cache.stats()["used"] == 2


def test_an_empty_batch_is_no_step(cache):
    """No sequences, arrays without rows: nothing happens."""
    cache.append_batch([], 0, np.ones((0, 2, 3)), np.ones((0, 2, 3)))
    assert cache.stats()["used"] == 0


def test_a_batch_names_the_blocks_that_it_fills(cache):
    """Sequences at different slots; two that fill equal blocks share one name."""
    for seq, tokens in {"a": [1, 2], "b": [1, 2], "c": [3]}.items():
        cache.add_seq(seq, tokens)
        if seq != "c":
            put(cache, seq, 1)
    for layer in (0, 1):
        cache.append_batch(["a", "b", "c"], layer, np.ones((3, 2, 3)), np.ones((3, 2, 3)))
    names = {seq: cache.pool.registered_hash(cache.block_table(seq)[0]) for seq in "abc"}
    assert names == {"a": H0, "b": 0, "c": 0}


# ---- envelopes ------------------------------------------------------------


def test_a_sequence_moves_to_another_cache(cache):
    """Positions, names and the bytes of a second export; the chain goes on from the tokens."""
    prompt(cache, "a", TOKENS)
    envelope = cache.export_seq("a")
    with PagedKVCache(8, 2, 2, 2, 3) as other:
        other.import_seq("b", memoryview(envelope), TOKENS)
        assert [other.seq_len("b", layer) for layer in (0, 1)] == [5, 5]
        assert other.export_seq("b") == envelope
        for layer in (0, 1):
            for here, there in zip(cache.gather("a", layer), other.gather("b", layer), strict=True):
                assert here.tobytes() == there.tobytes()
        other.extend_tokens("b", [6])
        put(other, "b", 1)
        assert other.pool.registered_hash(other.block_table("b")[2]) == block_hash(H1, [5, 6])
        assert other.add_seq("c", TOKENS) == 4


def test_export_is_what_every_layer_holds(cache):
    """A layer that is ahead is cut to the one behind."""
    cache.add_seq("a", TOKENS)
    put(cache, "a", 5, layers=(0,))
    assert len(cache.export_seq("a")) == 32
    put(cache, "a", 3, layers=(1,))
    cache.import_seq("b", cache.export_seq("a"))
    assert [cache.seq_len("b", layer) for layer in (0, 1)] == [3, 3]
    assert cache.gather("b", 0)[0].tobytes() == rows(3)[0].tobytes()


def test_an_imported_copy_gets_its_name_from_the_tokens(cache):
    """A private copy leaves without a name; with its tokens it arrives with one."""
    for seq in ("a", "b"):
        cache.add_seq(seq, TOKENS)
    for seq in ("a", "b"):
        put(cache, seq, 5)
    envelope = cache.export_seq("b")
    with PagedKVCache(8, 2, 2, 2, 3) as other:
        other.import_seq("unnamed", envelope)
        assert not other.pool.holds(H0)
        other.import_seq("named", envelope, TOKENS)
        assert [other.pool.registered_hash(block) for block in other.block_table("named")] == [H0, H1, 0]


def test_without_tokens_the_chain_goes_on_where_it_can(cache):
    """After a full, named last block new tokens name new blocks; after a partial or unnamed one they name none."""
    for seq in ("full", "copy"):
        cache.add_seq(seq, TOKENS[:4])
    for seq in ("full", "copy"):
        put(cache, seq, 4)
    prompt(cache, "partial", TOKENS)
    prompt(cache, "short", [1])
    for seq, names in (
        ("full", [H0, H1, block_hash(H1, [5, 6])]),
        ("partial", [H0, H1, 0]),
        ("copy", [0, 0, 0]),
        ("short", [0, 0]),
    ):
        with PagedKVCache(8, 2, 2, 2, 3) as other:
            other.import_seq("a", cache.export_seq(seq))
            other.extend_tokens("a", [5, 6, 7])
            put(other, "a", 2)
            assert [other.pool.registered_hash(block) for block in other.block_table("a")[:3]] == names


def test_an_import_in_a_namespace(cache):
    """The tokens give the envelope's hashes under the parent they were computed with, and no other."""
    prompt(cache, "a", TOKENS, parent=5)
    envelope = cache.export_seq("a")
    with pytest.raises(ValueError, match=r"import_seq: the tokens do not give the hash of block 0"):
        cache.import_seq("b", envelope, TOKENS)
    cache.import_seq("b", envelope, TOKENS, parent=5)


def envelope_of(cache, fills):
    """Return an envelope of fresh blocks with these fills, unnamed."""
    blocks = cache.pool.alloc(len(fills))
    cache.pool.slab[blocks] = 0
    cache.pool.set_fill(blocks, fills)
    envelope = cache.pool.export(blocks)
    cache.pool.unref(blocks)
    return envelope


def other_shape(_):
    with PagedKVCache(2, 4, 2, 2, 3) as other:
        other.add_seq("a", [1, 2, 3, 4])
        put(other, "a", 4)
        return other.export_seq("a")


@pytest.mark.parametrize(
    ("error", "why", "tokens", "make"),
    [
        (ValueError, "block 1 is partial", None, lambda c: envelope_of(c, [2, 1, 2])),
        (ValueError, "hash of block 1", [1, 2, 3, 5], lambda c: c.export_seq("a")),
        (ValueError, "hash of block 1", [1, 2, 3], lambda c: c.export_seq("a")),
        (ValueError, "hash of block 0", [], lambda c: c.export_seq("a")),
        (ShapeError, "import_seq", [1, 2, 3, 4], other_shape),
        (EnvelopeError, "rule 2", None, lambda c: c.export_seq("a")[:-1] + b"?"),
        (EnvelopeError, "rule 1", None, lambda _: b""),
        (TypeError, "bytes-like", None, lambda _: "text"),
    ],
    ids=["partial", "other token", "few tokens", "no tokens", "shape", "checksum", "short", "text"],
)
def test_a_failed_import_leaves_nothing(cache, error, why, tokens, make):
    """No sequence, no block, no eviction."""
    prompt(cache, "a", TOKENS)
    prompt(cache, "gone", [8, 9])
    cache.free("gone")
    envelope = make(cache)
    blocked = cache.pool.alloc(cache.stats()["free"])  # whatever an import takes would be an eviction
    before = snapshot(cache, "a")
    with pytest.raises(error, match=why):
        cache.import_seq("b", envelope, tokens)
    assert snapshot(cache, "a") == before
    with pytest.raises(KeyError):
        cache.seq_len("b")
    cache.pool.unref(blocked)


def test_an_import_without_room_leaves_nothing(cache):
    """Three blocks do not come into two, one of them cached."""
    prompt(cache, "a", TOKENS)
    prompt(cache, "gone", [8, 9])
    cache.free("gone")
    envelope = cache.export_seq("a")
    cache.pool.alloc(3)
    before = snapshot(cache, "a")
    with pytest.raises(OutOfBlocks):
        cache.import_seq("b", envelope, TOKENS)
    assert snapshot(cache, "a") == before and cache.add_seq("b", [8, 9, 1]) == 2


# ---- the pool's calls for many blocks -------------------------------------


def test_refcounts_of_many_blocks():
    """An array of ids gives an array of counts; one id out of range is an IndexError."""
    with Pool(3, 2, n_layers=1, n_kv_heads=1, head_dim=1) as pool:
        pool.ref(pool.alloc(2)[:1])
        for ids in ([0, 1, 2, 0], np.array([0, 1, 2, 0], np.int16)):
            counts = pool.refcount(ids)
            assert counts.dtype == np.uint32 and counts.tolist() == [2, 1, 0, 2]
        for bad in ([0, 3], [-1], [2**40]):
            with pytest.raises(IndexError):
                pool.refcount(bad)


def test_fills_of_many_blocks():
    """One fill for all or one for each, all or nothing."""
    with Pool(3, 2, n_layers=1, n_kv_heads=1, head_dim=1) as pool:
        blocks = pool.alloc(3)
        pool.set_fill(blocks, [2, 0, 1])
        assert [pool.fill(block) for block in blocks] == [2, 0, 1]
        for ids, fills in ((blocks, [1, 1, 3]), (blocks, [1, 1]), (blocks, -1), (blocks, [0, -1, 0]), ([0, 3], [1, 1])):
            with pytest.raises(InvalidArgument):
                pool.set_fill(ids, fills)
            assert [pool.fill(block) for block in blocks] == [2, 0, 1]
        pool.set_fill(blocks, 1)
        assert [pool.fill(block) for block in blocks] == [1, 1, 1]


@pytest.mark.parametrize(
    ("layer", "block", "slot", "why"),
    [
        (-1, 0, 0, "layer -1"),
        (2, 0, 0, "layer 2"),
        (0, 0, 2, "slot 2"),
        (0, 1, 0, "block 1 is shared or registered"),
        (0, 2, 0, "block 2 is shared or registered"),
        (0, 3, 0, "block 3 is free"),
        (0, 4, 0, "block 4 is out of range"),
    ],
)
def test_a_write_to_what_is_not_ones_own_is_refused(layer, block, slot, why):
    """Shared, registered, free and out of range: nothing is written, not even to the good block before."""
    with Pool(4, 2, n_layers=2, n_kv_heads=1, head_dim=1) as pool:
        blocks = pool.alloc(3)
        pool.slab[:] = 0
        pool.ref(1)
        pool.set_fill(blocks, 2)
        pool.register(2, 5)
        one = np.ones((2, 1, 1), np.float16)
        ids, slots = np.array([0, block], np.uint32), np.array([0, slot], np.uint32)
        with pytest.raises(InvalidArgument, match=why):
            pool._write(layer, ids, slots, one, one, heads_first=False)
        assert not pool.slab.any()


def test_overflow_warns_nobody(cache):
    """An append of what float16 cannot hold is silent."""
    cache.add_seq("a")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        cache.append("a", 0, ONE * 1e6, ONE * np.float64("nan"))
    assert np.isinf(cache.gather("a", 0)[0]).all() and np.isnan(cache.gather("a", 0)[1]).all()


def test_hashes_are_those_of_block_hashes(cache):
    """The names are what block_hashes gives for the same tokens and parent."""
    prompt(cache, "a", TOKENS, parent=7)
    names = [cache.pool.registered_hash(block) for block in cache.block_table("a")[:2]]
    assert names == block_hashes(TOKENS, 2, 7).tolist()


def test_a_cache_is_a_collection_of_its_sequences():
    """len, in and iteration know the live sequences; an empty cache is one all the same."""
    with PagedKVCache(4, 2, 1, 1, 1) as cache:
        assert len(cache) == 0 and list(cache) == []
        cache.add_seq("a")
        cache.add_seq(7)
        cache.fork("a", "b")
        assert (len(cache), list(cache)) == (3, ["a", 7, "b"])
        assert "a" in cache and "c" not in cache
        cache.free("a")
        assert list(cache) == [7, "b"]
        for seq_id in list(cache):
            cache.free(seq_id)
        assert len(cache) == 0

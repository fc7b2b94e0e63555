"""Every refusal of a Pool: the exception, its status, a text that names the call, and nothing changed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from busy import HASHES, MISSING, NEXT_IDS, SHAPE, busy, future, look, refused

from tinyllm_kv import (
    BlockIndexError,
    EnvelopeError,
    InvalidArgument,
    KVError,
    OutOfBlocks,
    Pool,
    ShapeError,
)

EMPTY_ENVELOPE = Pool(1, 2, **SHAPE).export([])
SMALL = busy().export([1])
LARGE = busy().export([1, 1, 1, 1, 1, 1])
OTHER = Pool(1, 2, n_layers=1, n_kv_heads=2, head_dim=3)
OTHER_SHAPE = OTHER.export([])

BAD_IDS = [-1, 10, 2**32 - 1, 2**32, 2**63, 2**64, -(2**63), -(2**70), 2**70]
UNHELD = [4, 5, 7, 8, 9]

Call = Callable[[Pool], Any]

#: method, what is done to the busy pool, the exception, words of its text
REFUSALS: list[tuple[str, Call, type[KVError], str]] = [
    ("alloc", lambda p: p.alloc(-1), InvalidArgument, "-1 blocks"),
    ("alloc", lambda p: p.alloc(-(2**70)), InvalidArgument, "blocks asked for"),
    ("alloc", lambda p: p.alloc(6), OutOfBlocks, "6 blocks asked for, 3 free and 2 cached"),
    ("alloc", lambda p: p.alloc(11), OutOfBlocks, "11 blocks asked for, the pool has 10"),
    ("alloc", lambda p: p.alloc(2**32), OutOfBlocks, "4294967296 blocks asked for"),
    ("alloc", lambda p: p.alloc(2**62), OutOfBlocks, "blocks asked for"),
    ("alloc", lambda p: p.alloc(2**70), OutOfBlocks, "blocks asked for"),
    ("ref", lambda p: p.ref([1, 2, 4, 3]), InvalidArgument, "block 4 is cached"),
    ("ref", lambda p: p.ref([1, 1, 1, 10]), InvalidArgument, "block 10 is out of range"),
    ("unref", lambda p: p.unref([0, 1, 2, 7]), InvalidArgument, "block 7 is free"),
    ("unref", lambda p: p.unref([1, 0, 1, 1]), InvalidArgument, "block 1 stands more often"),
    ("unref", lambda p: p.unref([0, 0]), InvalidArgument, r"block 0 stands more often than it has holders \(1\)"),
    ("set_fill", lambda p: p.set_fill(0, 3), InvalidArgument, "3 tokens, a block has 2"),
    ("set_fill", lambda p: p.set_fill(0, -1), InvalidArgument, "-1 tokens"),
    ("set_fill", lambda p: p.set_fill(0, 2**32), InvalidArgument, "4294967296 tokens"),
    ("set_fill", lambda p: p.set_fill(0, 2**70), InvalidArgument, "tokens"),
    ("set_fill", lambda p: p.set_fill(2, 2), InvalidArgument, "block 2 is registered"),
    ("set_fill", lambda p: p.set_fill([0, 6, 2], 1), InvalidArgument, "block 2 is registered"),
    ("set_fill", lambda p: p.set_fill([0, 6, 9], 2), InvalidArgument, "block 9 is free"),
    ("set_fill", lambda p: p.set_fill([0, 6], 3), InvalidArgument, "3 tokens, a block has 2"),
    ("set_fill", lambda p: p.set_fill([0, 6], -1), InvalidArgument, "-1 tokens, a block has 2"),
    ("set_fill", lambda p: p.set_fill([], 3), InvalidArgument, "3 tokens, a block has 2"),
    ("set_fill", lambda p: p.set_fill([0, 6], [2, 3]), InvalidArgument, "3 tokens, a block has 2"),
    ("set_fill", lambda p: p.set_fill([0, 6], [2, -1]), InvalidArgument, "-1 is not in 0"),
    ("set_fill", lambda p: p.set_fill([0, 6], [2]), InvalidArgument, "2 blocks and 1 fills"),
    ("evict", lambda p: p.evict(-1), InvalidArgument, "-1 blocks"),
    ("register", lambda p: p.register(0, 7), InvalidArgument, "block 0 holds 1 of 2 tokens"),
    ("register", lambda p: p.register(6, 7), InvalidArgument, "block 6 holds 0 of 2 tokens"),
    ("register", lambda p: p.register(1, 0), InvalidArgument, "hash 0"),
    ("register", lambda p: p.register(2, 7), InvalidArgument, "block 2 is registered under another hash"),
    ("register_many", lambda p: p.register_many([1], [1, 2]), InvalidArgument, "1 blocks and 2 hashes"),
    ("register", lambda p: p.register_many([1, 0], [1, 2]), InvalidArgument, "block 0 holds 1 of 2"),
    ("register", lambda p: p.register_many([1, 2, 3], [1, 22, 5]), InvalidArgument, "block 3 is registered"),
    ("register", lambda p: p.register_many([1, 1, 1], [1, 1, 2]), InvalidArgument, "block 1 is registered"),
    ("register", lambda p: p.register_many([1, 4], [1, 44]), InvalidArgument, "block 4 is cached"),
    ("acquire", lambda p: p.acquire([], -1), InvalidArgument, "-1 blocks"),
    ("acquire", lambda p: p.acquire([], 6), OutOfBlocks, "6 fresh blocks needed, 5 are free or cached"),
    # a hit on a cached block takes it away from the rest
    ("acquire", lambda p: p.acquire([44, 2**63, 22], 7), OutOfBlocks, "4 fresh blocks needed, 3 are"),
    ("acquire", lambda p: p.acquire([22, 2**64 - 1], 2**62), OutOfBlocks, "fresh blocks needed"),
    ("acquire", lambda p: p.acquire([22, 22, 44, 44], 2**70), OutOfBlocks, "fresh blocks needed"),
    ("export_bytes", lambda p: p.export_bytes(-1), InvalidArgument, "-1 blocks"),
    ("export_bytes", lambda p: p.export_bytes(2**32), InvalidArgument, "4294967296 blocks"),
    ("export", lambda p: p.export([1, 6]), InvalidArgument, "block 6 is empty"),
    ("export", lambda p: p.export([1, 4]), InvalidArgument, "block 4 is cached"),
    ("export", lambda p: p.export_into([1, 9], bytearray(999)), InvalidArgument, "block 9 is free"),
    ("export", lambda p: p.export_into([1], bytearray(139)), OutOfBlocks, "140 bytes needed, 139 given"),
    ("export", lambda p: p.export_into([1], p.slab), InvalidArgument, "overlaps the pool"),
    ("import", lambda p: p.import_(p.slab), InvalidArgument, "overlaps the pool"),
    ("import", lambda p: p.import_(SMALL[:-1]), EnvelopeError, "length"),
    ("import", lambda p: p.import_(SMALL + b"\0"), EnvelopeError, "length"),
    ("import", lambda p: p.import_(b""), EnvelopeError, "0 bytes"),
    ("import", lambda p: p.import_(b"X" + SMALL[1:]), EnvelopeError, "magic"),
    ("import", lambda p: p.import_(SMALL[:4] + b"\2" + SMALL[5:]), EnvelopeError, "version 2"),
    ("import", lambda p: p.import_(SMALL[:-1] + b"\0"), EnvelopeError, "CRC"),
    ("import", lambda p: p.import_(OTHER_SHAPE), ShapeError, "L 1"),
    ("import", lambda p: p.import_(LARGE), OutOfBlocks, "6 blocks in the envelope, 3 free and 2 cached"),
]


def single(method: str, call: Callable[[Pool, int], Any], ids: list[int]) -> list[tuple[str, Call, type[KVError], str]]:
    return [(method, lambda p, id=id: call(p, id), InvalidArgument, "") for id in ids]  # type: ignore[misc]


HOLDERS = {
    "ref": lambda p, id: p.ref(id),
    "unref": lambda p, id: p.unref(id),
    "cow": lambda p, id: p.cow(id),
    "set_fill": lambda p, id: p.set_fill(id, 1),
    "register": lambda p, id: p.register(id, 7),
}
HOLDERS_OF_MANY = {
    "ref": lambda p, id: p.ref([1, id]),
    "unref": lambda p, id: p.unref([1, id]),
    "set_fill": lambda p, id: p.set_fill([1, id], 1),
    "register": lambda p, id: p.register_many([1, id], [7, 8]),
    "export": lambda p, id: p.export([1, id]),
}
LOOKERS: dict[str, Callable[[Pool, int], Any]] = {
    "fill": lambda p, id: p.fill(id),
    "refcount": lambda p, id: p.refcount(id),
    "registered_hash": lambda p, id: p.registered_hash(id),
    "state": lambda p, id: p.state(id),
    "writable": lambda p, id: p.k(id, 0),
}

for _calls in (HOLDERS, HOLDERS_OF_MANY):
    for _method, _call in _calls.items():
        REFUSALS += single(_method, _call, BAD_IDS + UNHELD)


@pytest.mark.parametrize("method, call, error, words", REFUSALS)
def test_refusal(method: str, call: Call, error: type[KVError], words: str) -> None:
    """A refused call raises its own exception, says who refuses and why, and changes nothing."""
    raised = refused(call, error, rf"^(tl_kvx?_|Pool\.){method}\w*: .*{words}")
    assert type(raised) is error
    assert isinstance(raised, KVError)
    assert (raised.status, raised.name) == (error.status, error.name)


@pytest.mark.parametrize("id", BAD_IDS)
@pytest.mark.parametrize("method", LOOKERS)
def test_looking_out_of_range(method: str, id: int) -> None:
    """Introspection of an id out of range is an IndexError, and an InvalidArgument like every bad id."""
    raised = refused(lambda p: LOOKERS[method](p, id), IndexError, rf"^tl_kvx_{method}: block .* out of range")
    assert type(raised) is BlockIndexError
    assert isinstance(raised, InvalidArgument)
    assert (raised.status, raised.name) == (1, "TL_EINVAL")


#: calls of a value that is no integer of the kind expected
WRONG_KINDS: list[tuple[Call, type[Exception], str]] = [
    (lambda p: p.alloc(1.0), TypeError, "Pool.alloc: n: 1.0 is not an integer"),  # type: ignore[arg-type]
    (lambda p: p.alloc("1"), TypeError, "Pool.alloc: n: '1' is not"),  # type: ignore[arg-type]
    (lambda p: p.alloc(None), TypeError, "Pool.alloc: n: None is not"),  # type: ignore[arg-type]
    (lambda p: p.cow(0.0), TypeError, "Pool.cow: id: 0.0 is not"),  # type: ignore[arg-type]
    (lambda p: p.cow(np.True_), TypeError, "Pool.cow: id: .*True_? is not"),
    (lambda p: p.ref(1.0), TypeError, "Pool.ref: ids"),
    (lambda p: p.ref([1.0]), TypeError, "Pool.ref: ids"),
    (lambda p: p.ref([1, 2.0]), TypeError, "Pool.ref: ids"),
    (lambda p: p.ref("1"), TypeError, "Pool.ref: ids"),
    (lambda p: p.ref(None), TypeError, "Pool.ref: ids"),  # type: ignore[arg-type]
    (lambda p: p.ref({1, 2}), TypeError, "Pool.ref: ids"),  # type: ignore[arg-type]
    (lambda p: p.unref(np.array([1.0])), TypeError, "Pool.unref: ids"),
    (lambda p: p.unref([True]), TypeError, "Pool.unref: ids"),
    (lambda p: p.unref([[0, 1]]), ValueError, "Pool.unref: ids: one dimension"),
    (lambda p: p.unref([[0], [1, 2]]), ValueError, "Pool.unref: ids"),
    (lambda p: p.set_fill(0, 1.0), TypeError, "Pool.set_fill: n: 1.0 is not an integer"),  # type: ignore[arg-type]
    (lambda p: p.evict(1.5), TypeError, "Pool.evict: n: 1.5 is not"),  # type: ignore[arg-type]
    (lambda p: p.register(1, 7.0), TypeError, "Pool.register: hash"),  # type: ignore[arg-type]
    (lambda p: p.register(1, -1), OverflowError, "Pool.register: hash: -1"),
    (lambda p: p.register(1, 2**64), OverflowError, "Pool.register: hash: 18446744073709551616"),
    (lambda p: p.register_many([1], [-1]), OverflowError, "Pool.register_many: hashes: -1"),
    (lambda p: p.register_many([1], [2**64]), OverflowError, "Pool.register_many: hashes: 18446744073709551616"),
    (lambda p: p.register_many([1], [7.0]), TypeError, "Pool.register_many: hashes"),
    (lambda p: p.lookup(-1), OverflowError, "Pool.lookup: hash: -1"),
    (lambda p: p.lookup(2**64), OverflowError, "Pool.lookup: hash"),
    (lambda p: p.lookup(22.0), TypeError, "Pool.lookup: hash"),  # type: ignore[arg-type]
    (lambda p: p.holds(2**64), OverflowError, "Pool.holds: hash"),
    (lambda p: p.match_prefix([44, -1]), OverflowError, "Pool.match_prefix: hashes: -1"),
    (lambda p: p.match_prefix(np.array([44, -1])), OverflowError, "Pool.match_prefix: hashes: -1"),
    (lambda p: p.match_prefix([44, 2**64]), OverflowError, "Pool.match_prefix: hashes"),
    (lambda p: p.match_prefix([44.0]), TypeError, "Pool.match_prefix: hashes"),
    (lambda p: p.count_prefix([44, 2**64]), OverflowError, "Pool.count_prefix: hashes"),
    (lambda p: p.acquire([44, -1], 2), OverflowError, "Pool.acquire: hashes: -1"),
    (lambda p: p.acquire([44], 2.0), TypeError, "Pool.acquire: n: 2.0 is not"),  # type: ignore[arg-type]
    (lambda p: p.k(0, -1), IndexError, "Pool.k: layer: -1 is not in 0 … 1"),
    (lambda p: p.k(0, 2), IndexError, "Pool.k: layer: 2 is not in 0 … 1"),
    (lambda p: p.v(0, 2**70), IndexError, "Pool.v: layer"),
    (lambda p: p.v(0, 0.0), TypeError, "Pool.v: layer: 0.0 is not"),  # type: ignore[arg-type]
    (lambda p: p.block(0.0), TypeError, "Pool.block: id: 0.0 is not"),  # type: ignore[arg-type]
    (lambda p: p.export(1.0), TypeError, "Pool.export: ids"),
    (lambda p: p.export_into([1], bytes(99)), BufferError, "Pool.export_into: .*writable"),
    (lambda p: p.export_into([1], np.zeros(198, np.uint8)[::2]), ValueError, "Pool.export_into: .*contiguous"),
    (lambda p: p.export_into([1], 99), TypeError, "Pool.export_into: .*int"),
    (lambda p: p.export_into([1], "x" * 99), TypeError, "Pool.export_into: .*unicode"),
    (lambda p: p.import_(5), TypeError, "Pool.import_: .*int"),
    (lambda p: p.import_("TLKV"), TypeError, "Pool.import_: .*unicode"),
    (lambda p: p.import_(None), TypeError, "Pool.import_: .*NoneType"),
    (lambda p: p.import_(np.zeros(198, np.uint8)[::2]), ValueError, "Pool.import_: .*contiguous"),
]


@pytest.mark.parametrize("call, error, words", WRONG_KINDS)
def test_wrong_kind(call: Call, error: type[Exception], words: str) -> None:
    """A value of the wrong kind or beyond its type's range is refused before C sees it."""
    raised = refused(call, error, words)
    assert isinstance(raised, error)


@pytest.mark.parametrize("n", [2**31, 2**40, 2**62, 2**70])
def test_absurd_counts_take_no_memory(n: int) -> None:
    """An absurd count is refused before an array of that size is made: MemoryError would be the sign of one."""
    pool = busy()
    with pytest.raises(OutOfBlocks):
        pool.alloc(n)
    with pytest.raises(OutOfBlocks):
        pool.acquire([22], n)


def test_export_into_a_refused_buffer_writes_nothing() -> None:
    """A buffer that is too small, or is meant for a block nobody holds, keeps its bytes."""
    pool = busy()
    for ids, size in [([1], 139), ([1, 9], 999)]:
        buffer = bytearray(b"\x5a" * size)
        with pytest.raises(KVError):
            pool.export_into(ids, buffer)
        assert buffer == b"\x5a" * size


@pytest.mark.parametrize("dimension", ["n_blocks", "block_tokens", "n_layers", "n_kv_heads", "head_dim"])
@pytest.mark.parametrize("value", [0, -1, 2**32, 2**70])
def test_dimensions(dimension: str, value: int) -> None:
    """A dimension that is 0, negative or beyond 32 bits is named in the refusal."""
    shape = {"n_blocks": 1, "block_tokens": 1, "n_layers": 1, "n_kv_heads": 1, "head_dim": 1, dimension: value}
    with pytest.raises(InvalidArgument, match=f"Pool: {dimension}: {value} "):
        Pool(**shape)


def test_dimensions_are_integers() -> None:
    """A dimension that is no integer is a TypeError that names it."""
    with pytest.raises(TypeError, match="Pool: head_dim: 2.0 is not an integer"):
        Pool(1, 1, n_layers=1, n_kv_heads=1, head_dim=2.0)  # type: ignore[arg-type]


def test_busy_pool_is_what_its_table_says() -> None:
    """The pool that all of this is tried on has blocks in every state."""
    pool = busy()
    seen = look(pool)
    assert seen["stats"] == (3, 5, 2, 0)
    assert seen["refcounts"] == [1, 2, 1, 2, 0, 0, 1, 0, 0, 0]
    assert seen["fills"] == [1, 2, 2, 2, 2, 2, 0, 0, 0, 0]
    assert seen["hashes"] == [0, 0, 22, 2**64 - 1, 44, 2**63, 0, 0, 0, 0]
    assert seen["held"] == [True] * len(HASHES) + [False]
    assert not pool.holds(MISSING)
    assert future(pool)["ids"] == NEXT_IDS

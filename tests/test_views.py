"""Views: shape and layout, who may write, and how long the memory under them lives."""

from __future__ import annotations

import gc
import os
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from busy import SHAPE, busy
from interpreter import prints

from tinyllm_kv import Pool

View = np.ndarray[Any, np.dtype[np.float16]]

# ---- layout ------------------------------------------------------------------------------------


def test_shapes_and_types() -> None:
    """Views are float16, contiguous, of the shapes promised."""
    pool = Pool(5, 4, n_layers=3, n_kv_heads=2, head_dim=6)
    pool.alloc()
    for view, shape in [
        (pool.k(0, 1), (2, 4, 6)),
        (pool.v(0, 1), (2, 4, 6)),
        (pool.block(0), (3, 2, 2, 4, 6)),
        (pool.slab, (5, 3, 2, 2, 4, 6)),
    ]:
        assert view.shape == shape
        assert view.dtype == np.float16
        assert view.flags.c_contiguous
        assert view.flags.aligned
        assert not view.flags.owndata


def test_k_v_block_and_slab_are_one_memory() -> None:
    """What is written through one view is read through the others: the layout is the slab's."""
    pool = Pool(5, 4, n_layers=3, n_kv_heads=2, head_dim=6)
    ids = pool.alloc(5)
    for id in ids:
        for layer in range(3):
            pool.k(id, layer)[:] = id * 100 + layer * 10
            pool.v(id, layer)[:] = id * 100 + layer * 10 + 1
    expected = np.arange(5)[:, None, None] * 100 + np.arange(3)[:, None] * 10 + np.arange(2)
    assert (pool.slab == expected[..., None, None, None]).all()
    assert (pool.block(4) == expected[4, :, :, None, None, None]).all()
    address = pool.slab.__array_interface__["data"][0]
    assert address % 64 == 0
    assert pool.k(2, 1).__array_interface__["data"][0] == address + 2 * pool.block_bytes + 2 * 96
    assert pool.v(2, 1).__array_interface__["data"][0] == address + 2 * pool.block_bytes + 3 * 96


def test_slab_gathers_by_block_table() -> None:
    """Fancy indexing of the slab by ids is how a kernel reads a sequence."""
    pool = busy()
    assert (pool.slab[np.array([3, 0, 3])] == np.stack([pool.block(3), pool.block(0), pool.block(3)])).all()


def test_dlpack_shares_the_memory() -> None:
    """Another array library sees the same bytes."""
    pool = Pool(1, 2, **SHAPE)
    pool.alloc()
    other = np.from_dlpack(pool.k(0, 0))  # type: ignore[attr-defined,unused-ignore]
    pool.k(0, 0)[:] = 7
    assert (other == 7).all()
    assert np.shares_memory(other, pool.slab)


# ---- who may write -----------------------------------------------------------------------------

WAYS: list[Callable[[Pool, int], View]] = [
    lambda p, id: p.k(id, 1),
    lambda p, id: p.v(id, 0),
    lambda p, id: p.block(id),
]


@pytest.mark.parametrize("way", WAYS)
def test_trap_14_only_an_own_unregistered_block_is_writable(way: Callable[[Pool, int], View]) -> None:
    """Writable: one holder and no hash. Shared, registered, cached, free: read-only."""
    pool = busy()
    assert [id for id in range(len(pool)) if way(pool, id).flags.writeable] == [0, 6]
    with pytest.raises(ValueError, match="read-only"):
        way(pool, 1)[:] = 0
    with pytest.raises(ValueError, match="read-only"):
        way(pool, 2)[:] = 0


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("part", [lambda v: v, lambda v: v[0], lambda v: v.T, lambda v: v.view(np.uint16)])
def test_read_only_is_for_good(way: Callable[[Pool, int], View], part: Callable[[View], View]) -> None:
    """A read-only view cannot be made writable, nor can what is derived from it."""
    pool = busy()
    view = part(way(pool, 1))
    with pytest.raises(ValueError, match="WRITEABLE"):
        view.flags.writeable = True
    with pytest.raises(ValueError, match="WRITEABLE"):
        view.setflags(write=True)
    assert memoryview(view).readonly  # type: ignore[arg-type,unused-ignore]


def test_a_view_keeps_its_flag() -> None:
    """A view made while the block was the holder's own stays writable, one made while it was shared does not."""
    pool = busy()
    own, shared = pool.k(0, 0), pool.k(1, 0)
    pool.ref(0)
    pool.unref(1)
    assert own.flags.writeable
    assert not pool.k(0, 0).flags.writeable
    assert not shared.flags.writeable
    assert pool.k(1, 0).flags.writeable


def test_the_flag_follows_the_block() -> None:
    """Share, register, copy: the next view has the flag of the state then."""
    pool = busy()
    pool.ref(6)
    assert not pool.block(6).flags.writeable
    copy = pool.cow(6)
    assert pool.block(6).flags.writeable
    assert pool.block(copy).flags.writeable
    pool.set_fill(6, 2)
    pool.register(6, 5)
    assert not pool.block(6).flags.writeable


def test_the_slab_is_writable() -> None:
    """The slab is for kernels: always writable, and a name of its own each time."""
    pool = busy()
    slab = pool.slab
    slab[0] = 3
    assert (pool.block(0) == 3).all()
    slab.flags.writeable = False
    assert pool.slab.flags.writeable


# ---- how long it lives -------------------------------------------------------------------------


@pytest.mark.parametrize("end", ["close", "del", "both"])
@pytest.mark.parametrize(
    "part",
    [lambda v: v, lambda v: v[1:].T, lambda v: v[..., 0], lambda v: v.reshape(-1)[5:], memoryview, np.asarray],
)
def test_trap_04_a_view_outlives_the_pool(end: str, part: Callable[[View], Any]) -> None:
    """The pool is closed, dropped, collected: a view, or what is left of one, still reads and writes."""
    pool = Pool(4, 2, **SHAPE)
    pool.alloc(2)
    pool.block(1)[:] = 5
    view = part(pool.block(1))
    if end != "del":
        pool.close()
    if end != "close":
        del pool
    gc.collect()
    noise = [Pool(4, 2, **SHAPE) for _ in range(20)]
    for other in noise:
        other.slab[:] = -1
    assert (np.asarray(view) == 5).all()
    np.asarray(view)[:] = 6
    assert (np.asarray(view) == 6).all()


def test_trap_12_a_view_of_a_released_block_shows_the_new_owner() -> None:
    """A slot is reused under a live array: it shows the new owner's data; a copy does not."""
    pool = Pool(1, 2, **SHAPE)
    old = pool.block(int(pool.alloc()[0]))
    old[:] = 1
    kept = old.copy()
    pool.unref(0)
    pool.alloc()
    pool.block(0)[:] = 2
    assert (old == 2).all()
    assert (kept == 1).all()


def test_trap_04_views_at_interpreter_exit() -> None:
    """At exit, in whatever order things go, nothing crashes and nothing is said."""
    prints(
        """
        import atexit, sys, numpy as np
        from tinyllm_kv import Pool

        pool = Pool(4, 2, n_layers=2, n_kv_heads=2, head_dim=3)
        pool.alloc(4)
        pool.slab[:] = 2
        part = pool.block(3)[1:].T
        sys.modules["kept beyond the modules"] = pool.k(0, 0)
        again = Pool(2, n_layers=1, n_kv_heads=1, head_dim=1)
        again.itself = again  # a cycle
        class Last:
            def __del__(self, part=part, pool=pool):
                part[:] = part * 2
                print(float(part.sum()), len(pool))
        last = Last()
        last.itself = last
        atexit.register(lambda: print(float(part.sum())))
        """,
        "48.0\n96.0 4\n",
    )


def resident() -> int:
    """Return the resident memory of this process, in bytes."""
    with open("/proc/self/statm") as statm:
        return int(statm.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


@pytest.mark.parametrize("end", ["close", "del"])
def test_memory_goes_with_the_last_view(end: str) -> None:
    """A slab of 128 MiB stays while a slice of a slice of it lives, and goes with it."""
    size = 128 << 20
    gc.collect()
    before = resident()
    pool = Pool(64, 16, n_layers=32, n_kv_heads=8, head_dim=128)
    assert len(pool) * pool.block_bytes == size
    pool.alloc(64)
    pool.slab[:] = 1
    part = pool.k(63, 31)[7, 15:]
    assert resident() > before + size * 0.9
    if end == "close":
        pool.close()
    else:
        del pool
    gc.collect()
    assert resident() > before + size * 0.9
    assert (part == 1).all()
    del part
    gc.collect()
    assert resident() < before + size * 0.1


def test_an_untouched_slab_takes_no_memory() -> None:
    """Making a pool does not touch its slab."""
    before = resident()
    pool = Pool(1024, 16, n_layers=32, n_kv_heads=8, head_dim=128)
    assert len(pool) * pool.block_bytes == 2 << 30
    assert resident() < before + (64 << 20)

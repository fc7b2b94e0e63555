"""Arrays elsewhere: other libraries' arrays over the slab."""

from __future__ import annotations

import gc

import numpy as np
import pytest
from tinyllm_kv import Pool

NUMPY = tuple(map(int, np.__version__.split(".")[:2]))


@pytest.fixture
def pool():
    with Pool(2, 2, n_layers=2, n_kv_heads=1, head_dim=3) as made:
        made.alloc(1)
        made.slab[:] = 0
        yield made


@pytest.mark.parametrize("of", ["k", "v", "block", "slab"])
def test_dlpack_shares_memory(pool, of):
    """What is written to the pool shows in the other array, which has the view's shape and type."""
    view = {"k": pool.k(0, 1), "v": pool.v(0, 1), "block": pool.block(0), "slab": pool.slab}[of]
    other = np.from_dlpack(view)
    assert other.shape == view.shape and other.dtype == np.float16 and np.shares_memory(other, pool.slab)
    pool.slab[0, 1] = [[[[1, 2, 3]] * 2]] * 2
    assert other.tobytes() == view.tobytes() and other.any()


def test_dlpack_outlives_the_pool():
    """The other array keeps the memory alive on its own."""
    pool = Pool(2, 2, n_layers=1, n_kv_heads=1, head_dim=3)
    pool.alloc(1)
    pool.k(0, 0)[:] = 7
    other = np.from_dlpack(pool.k(0, 0))
    pool.close()
    del pool
    gc.collect()
    assert (other == 7).all()


def test_a_read_only_view_stays_read_only_or_is_refused(pool):
    """A shared block's view comes out read-only, from NumPy 2.1 on; before, DLPack cannot say so and refuses."""
    pool.ref(0)
    view = pool.k(0, 0)
    if NUMPY < (2, 1):
        with pytest.raises((BufferError, TypeError)):
            np.from_dlpack(view)
    else:
        other = np.from_dlpack(view)
        assert not other.flags.writeable and np.shares_memory(other, pool.slab)

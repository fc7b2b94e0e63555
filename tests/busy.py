"""A pool with blocks in every state, and all that can be seen of it: for tests of what a call changes.

    block   state    holders  fill  hash            built so that
      0     used     1        1     -
      1     used     2        2     -               shared
      2     used     1        2     22
      3     used     2        2     2^64 - 1        shared
      4     cached   0        2     44              evicted second
      5     cached   0        2     2^63            evicted first
      6     used     1        0     -               empty
      8 7 9 free                                    handed out in this order
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tinyllm_kv import OutOfBlocks, Pool

HASHES = {2: 22, 3: 2**64 - 1, 4: 44, 5: 2**63}
SHAPE = {"n_layers": 2, "n_kv_heads": 2, "head_dim": 3}
MISSING = 999
NEXT_IDS = [8, 7, 9, 5, 4]


def busy() -> Pool:
    """Return the pool of the table above, every byte of it written; no two values of a block are equal."""
    pool = Pool(10, 2, **SHAPE)
    pool.slab[:] = np.arange(pool.slab.size).reshape(pool.slab.shape)
    pool.alloc(9)
    pool.set_fill(0, 1)
    pool.set_fill([1, 2, 3, 4, 5], 2)
    pool.register_many(list(HASHES), list(HASHES.values()))
    pool.ref([1, 3])
    pool.unref([4, 5])
    pool.unref([8, 7])
    return pool


def look(pool: Pool) -> dict[str, Any]:
    """Return all that can be seen of an open pool without changing it; bytes of held blocks only."""
    ids = range(len(pool))
    states = [pool.state(id) for id in ids]
    return {
        "stats": pool.stats(),
        "states": states,
        "refcounts": [pool.refcount(id) for id in ids],
        "fills": [pool.fill(id) for id in ids],
        "hashes": [pool.registered_hash(id) for id in ids],
        "held": [pool.holds(hash) for hash in [*HASHES.values(), MISSING]],
        "bytes": [pool.block(id).tobytes() if states[id] == "used" else b"" for id in ids],
    }


def future(pool: Pool) -> dict[str, Any]:
    """Use the pool up; return what showed itself: the order of ids, evictions, and the closed pool's bytes."""
    ids = []
    while True:
        try:
            ids += pool.alloc(1).tolist()
        except OutOfBlocks:
            break
    seen, slab = look(pool), pool.slab
    pool.close()
    return {"ids": ids, "seen": seen, "slab": slab.tobytes()}


def refused(call: Callable[[Pool], Any], error: type[Exception], words: str | None = None) -> Exception:
    """Check that a call on a busy pool raises this with these words (a pattern), and changes nothing at all.

    Nothing: neither what can be seen, nor what a twin without the call shows when it is used up.
    """
    pool, twin = busy(), busy()
    before = look(pool)
    with pytest.raises(error, match=words) as caught:
        call(pool)
    assert look(pool) == before
    assert future(pool) == future(twin)
    return caught.value

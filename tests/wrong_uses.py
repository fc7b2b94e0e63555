"""Uses of the package that a type checker refuses, each with mypy's reason at its end; nobody runs it.

They are the proof that typed_uses.py is not accepted for want of types.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

import tinyllm_kv
from tinyllm_kv import PagedKVCache, Pool, block_hash, block_hashes, crc32c

pool = Pool(8, n_layers=1, n_kv_heads=2, head_dim=4)
cache = PagedKVCache(4, 2, n_layers=1, n_kv_heads=1, d_head=2)

Pool(8, 16, 1, 2, 4)  # error: call-arg
Pool(8, n_layers=1, n_kv_heads=2)  # error: call-arg
Pool("8", n_layers=1, n_kv_heads=2, head_dim=4)  # error: arg-type
pool.alloc("1")  # error: arg-type
pool.alloc(1.5)  # error: arg-type
pool.ref(None)  # error: arg-type
pool.unref({1})  # error: arg-type
pool.cow([1])  # error: arg-type
pool.set_fill([1], "2")  # error: arg-type
pool.register(1, None)  # error: arg-type
pool.lookup(1.5)  # error: arg-type
pool.acquire([1])  # error: call-arg
pool.evict("all")  # error: arg-type
pool.k(0)  # error: call-arg
pool.allocate(1)  # error: attr-defined
pool.slab = pool.block(0)  # error: misc
pool.closed = True  # error: misc
block_hash("0", [1])  # error: arg-type
block_hashes([1], None)  # error: arg-type
crc32c(b"", None)  # error: arg-type
PagedKVCache(4, 2.0, 1, 1, 2)  # error: arg-type
cache.seq_len("a", 0.0)  # error: arg-type
tinyllm_kv.hash_block  # error: attr-defined

ids: list[int] = pool.alloc()  # error: assignment
narrow: NDArray[np.uint16] = pool.alloc()  # error: assignment
wide: NDArray[np.float32] = pool.k(0, 0)  # error: assignment
wide = pool.slab  # error: assignment
signed: NDArray[np.int64] = block_hashes([1], 1)  # error: assignment
found: int = pool.lookup(5)  # error: assignment
copy: str = pool.cow(0)  # error: assignment
new: str = pool.register(0, 5)  # error: assignment
count: str = pool.register_many([0], [5])  # error: assignment
run: list[int] = pool.match_prefix([5])  # error: assignment
admitted: NDArray[np.uint32] = pool.acquire([5], 1)  # error: assignment
held: str = pool.holds(5)  # error: assignment
number: str = pool.count_prefix([5])  # error: assignment
number = pool.evict()  # error: assignment
number = pool.refcount(0)  # error: assignment
number = pool.registered_hash(0)  # error: assignment
number = pool.fill(0)  # error: assignment
number = pool.export_bytes(1)  # error: assignment
number = pool.export_into([0], bytearray(9))  # error: assignment
number = pool.stats().free  # error: assignment
number = pool.cfg.n_blocks  # error: assignment
number = pool.block_bytes  # error: assignment
number = block_hash(0, [1])  # error: assignment
number = crc32c(b"")  # error: assignment
state: int = pool.state(0)  # error: assignment
state = pool.map()  # error: assignment
envelope: bytearray = pool.export([0])  # error: assignment
imported: list[int] = pool.import_(b"")  # error: assignment

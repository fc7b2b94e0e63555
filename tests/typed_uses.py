"""Uses of the package that a type checker accepts; test_typing.py has mypy read this file, nobody runs it.

Each answer is assigned to a variable of the type promised.
"""

from __future__ import annotations

import array
import mmap

import numpy as np
from numpy.typing import NDArray

from tinyllm_kv import (
    BlockIndexError,
    Envelope,
    EnvelopeError,
    InvalidArgument,
    KVError,
    OutOfBlocks,
    OutOfMemory,
    PagedKVCache,
    Pool,
    ShapeError,
    Stats,
    Unsupported,
    __version__,
    block_hash,
    block_hashes,
    crc32c,
    get_include,
    get_sources,
)

version: str = __version__
include: str = get_include()
sources: list[str] = get_sources()

name: int = block_hash(0, [1, 2])
name = block_hash(None, (1, 2))
name = block_hash(name, range(3))
name = block_hash(name, np.arange(3))
name = block_hash(name, np.zeros(3, np.uint16))
names: NDArray[np.uint64] = block_hashes(np.arange(9, dtype=np.uint32), 4)
names = block_hashes([1, 2, 3], 2, parent=name)
names = block_hashes([], 2, None)
name = block_hash(names[0], [3, 4])
names = block_hashes([1, 2, 3], np.int64(2), parent=names[0])

checksum: int = crc32c(b"bytes")
checksum = crc32c(bytearray(4), checksum)
checksum = crc32c(memoryview(b"1234").cast("I"))
checksum = crc32c(array.array("Q", [1]))
checksum = crc32c(np.zeros(4), crc=1)
checksum = crc32c(mmap.mmap(-1, 10))
checksum = crc32c(b"bytes", np.uint32(checksum))

with Pool(8, 16, n_layers=1, n_kv_heads=2, head_dim=4) as pool:
    same: Pool = pool
pool = Pool(8, n_layers=1, n_kv_heads=2, head_dim=4)

ids: NDArray[np.uint32] = pool.alloc()
ids = pool.alloc(n=3)
pool.ref(3)
pool.ref([1, 2])
pool.ref(ids)
pool.unref(ids[0])
pool.unref(ids[::-1])
copy: int = pool.cow(0)
filled: int = pool.fill(0)
pool.set_fill(0, 16)
pool.set_fill(ids, 16)
new: bool = pool.register(0, 5)
count: int = pool.register_many(ids, names)
count = pool.register_many([0], [5])
found: int | None = pool.lookup(5)
ids = pool.match_prefix(names)
ids, hits = pool.acquire(names, 4)
hits_are_int: int = hits
count = pool.count_prefix([1, 2])
held: bool = pool.holds(5)
count = pool.evict()
count = pool.evict(2)
count = pool.evict(None)
holders: int = pool.refcount(0)
name = pool.registered_hash(0)
state: str = pool.state(0)

view: NDArray[np.float16] = pool.k(0, 0)
view = pool.v(0, layer=0)
view = pool.block(0)
view = pool.slab
view = pool.slab[ids]

envelope: bytes = pool.export(ids)
envelope = pool.export([1, 2])
written: int = pool.export_into(ids, bytearray(100))
written = pool.export_into(ids, np.zeros(100, np.uint8))
size: int = pool.export_bytes(3)
ids = pool.import_(envelope)
ids = pool.import_(memoryview(envelope))
parsed: Envelope = Envelope.parse(envelope)
parsed = Envelope.parse(mmap.mmap(-1, 10))
parsed = Envelope.parse(np.zeros(100, np.uint8))

stats: Stats = pool.stats()
free, used, cached, evictions = stats
total: int = free + used + cached + stats.evictions
picture: str = pool.map()
blocks: int = pool.cfg.n_blocks + pool.block_bytes + len(pool)
text: str = repr(pool)
pool.close()
closed: bool = pool.closed

try:
    pool.alloc()
except OutOfBlocks as error:
    as_runtime_error: RuntimeError = error
except (EnvelopeError, ShapeError, InvalidArgument) as error_of_value:
    as_value_error: ValueError = error_of_value
except Unsupported as unsupported:
    as_not_implemented: NotImplementedError = unsupported
except OutOfMemory as no_memory:
    as_memory_error: MemoryError = no_memory
except KVError as other:
    status: int = other.status
    status_name: str = other.name

index_error: type[IndexError] = BlockIndexError

with PagedKVCache(4, 2, n_layers=1, n_kv_heads=1, d_head=2) as cache:
    reused: int = cache.add_seq("a", [1, 2, 3], parent=0)
    reused = cache.add_seq("n", [1, 2, 3], parent=names[0])
    cache.append("a", 0, np.ones((1, 1, 2)), np.ones((1, 1, 2), np.float32))
    cache.append_batch(["a"], 0, np.ones((1, 1, 2)), [[[0.5, 1.0]]])
    cache.append("a", np.int64(0), np.ones((1, 1, 2)), np.ones((1, 1, 2)))
    cache.append_batch(["a"], np.uint32(0), np.ones((1, 1, 2)), np.ones((1, 1, 2)))
    cache.extend_tokens("a", np.array([4]))
    cache.fork("a", ("a", 1))
    keys_and_values: tuple[NDArray[np.float16], NDArray[np.float16]] = cache.gather("a", 0)
    keys_and_values = cache.gather("a", np.uint8(0))
    table: NDArray[np.int32] = cache.block_table("a")
    length: int = cache.seq_len("a") + cache.seq_len("a", np.int64(0)) + cache.num_free_blocks()
    sequence: bytes = cache.export_seq("a")
    cache.import_seq("b", memoryview(sequence), tokens=range(3), parent=names[0])
    cache.free("b")
    counts: dict[str, int] = cache.stats()
    refcounts: NDArray[np.uint32] = cache.pool.refcount(table)
    refcount: int = cache.pool.refcount(0)

PagedKVCache(np.int64(4), np.uint32(2), n_layers=np.int8(1), n_kv_heads=np.uint8(1), d_head=np.int16(2)).close()

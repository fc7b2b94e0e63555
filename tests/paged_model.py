"""A contiguous float16 cache in NumPy, and a look at everything that a refused call must leave alone."""

from __future__ import annotations

import zlib
from dataclasses import dataclass, field

import numpy as np
from parity.transcription import block_hash

LAYERS, HEADS, DIM = 2, 2, 3
SHAPE = {"n_layers": LAYERS, "n_kv_heads": HEADS, "d_head": DIM}


def computed(parent, tokens, layer):
    """Return what a model computes for the last of `tokens`, float16 [2, HEADS, DIM]: a function of all of them."""
    seed = zlib.crc32(repr((parent, list(tokens), layer)).encode())
    return np.random.default_rng(seed).standard_normal((2, HEADS, DIM)).astype(np.float16)


def hash_chain(parent, tokens, size):
    """Return the names of the full blocks of a sequence, by the independent transcription."""
    names = []
    for end in range(size, len(tokens) + 1, size):
        names.append(block_hash(names[-1] if names else parent, tokens[end - size : end]))
    return names


@dataclass
class Dense:
    """One sequence in contiguous arrays."""

    parent: int = 0
    tokens: list = field(default_factory=list)  # of all positions that any layer has, or will have
    told: int = 0  # how many of them the paged cache knows; None: it cannot know them
    kv: list = field(default_factory=lambda: [np.zeros((2, HEADS, 0, DIM), np.float16)] * LAYERS)

    def lengths(self):
        return [kv.shape[2] for kv in self.kv]

    def next(self, layer, n, more):
        """Return the next `n` positions of a layer as [2, HEADS, n, DIM]; `more` makes tokens where they end."""
        start = self.lengths()[layer]
        while len(self.tokens) < start + n:
            self.tokens.append(more())
        rows = [computed(self.parent, self.tokens[: p + 1], layer) for p in range(start, start + n)]
        return np.stack(rows, axis=2)

    def append(self, layer, kv):
        self.kv[layer] = np.concatenate([self.kv[layer], kv], axis=2)

    def copy(self):
        return Dense(self.parent, list(self.tokens), self.told, list(self.kv))


def snapshot(cache, seq_ids):
    """Return all that can be seen: lengths, tables, contents, counts, states, names and fills."""
    pool = cache.pool
    blocks = range(cache.num_blocks)
    return {
        "sequences": {
            seq: (
                [cache.seq_len(seq, layer) for layer in range(cache.n_layers)],
                cache.block_table(seq).tolist(),
                [part.tobytes() for layer in range(cache.n_layers) for part in cache.gather(seq, layer)],
            )
            for seq in seq_ids
        },
        "blocks": [(pool.state(b), pool.refcount(b), pool.fill(b), pool.registered_hash(b)) for b in blocks],
        "cached bytes": [pool.slab[b].tobytes() for b in blocks if pool.state(b) == "cached"],
        "stats": cache.stats(),
    }


def check(cache, model):
    """Check that the paged cache holds what the contiguous ones do, and its pool what the tables say."""
    size, pool = cache.block_size, cache.pool
    holders = [0] * cache.num_blocks
    for seq, dense in model.items():
        table = cache.block_table(seq)
        assert table.dtype == np.int32
        lengths = dense.lengths()
        assert [cache.seq_len(seq, layer) for layer in range(LAYERS)] == lengths
        assert len(table) == -(-max(lengths) // size)
        for layer in range(LAYERS):
            for part, expected in zip(cache.gather(seq, layer), dense.kv[layer], strict=True):
                assert part.dtype == np.float16 and part.flags.c_contiguous
                assert part.shape == expected.shape and part.tobytes() == expected.tobytes()
        names = hash_chain(dense.parent, dense.tokens, size)  # told or not: a fork may have told them
        for i, block in enumerate(table.tolist()):
            holders[block] += 1
            assert pool.fill(block) == min(max(min(lengths) - i * size, 0), size)
            assert pool.registered_hash(block) in ((0, names[i]) if pool.fill(block) == size else (0,))
    assert [pool.refcount(block) for block in range(cache.num_blocks)] == holders
    stats = cache.stats()
    assert stats["used"] == sum(n > 0 for n in holders)
    assert stats["free"] + stats["used"] + stats["cached"] == cache.num_blocks
    assert cache.num_free_blocks() == stats["free"] + stats["cached"]


def blocks_needed(cache, writes):
    """Return how many blocks appends need: `writes` is [(seq, layer, n)], fresh ones and copies of shared ones."""
    size, needed, holders = cache.block_size, 0, {}
    for seq, layer, n in writes:
        table, start = cache.block_table(seq).tolist(), cache.seq_len(seq, layer)
        for i in range(start // size, -(-(start + n) // size)):
            if i >= len(table):
                needed += 1
            elif holders.setdefault(table[i], cache.pool.refcount(table[i])) > 1:
                holders[table[i]] -= 1
                needed += 1
    return needed

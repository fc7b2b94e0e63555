"""A pool in plain Python with the batch methods of :class:`tinyllm_kv.Pool`: the benchmark's peer.

It keeps the same books in a dict, lists and an ``OrderedDict``, in the way a Python
programmer who cares for speed writes them, and has no slab. Ids and hashes are lists of ints.
What the other pool refuses is a ``ValueError`` here and changes nothing; of an id that was
never handed out it knows only that it is too large (``IndexError``).
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Sequence


class PlainPool:
    """A pool of ``n_blocks`` blocks of ``block_tokens`` tokens."""

    def __init__(self, n_blocks: int, block_tokens: int = 16) -> None:
        self._block_tokens = block_tokens
        self._refs = [0] * n_blocks
        self._fills = [0] * n_blocks
        self._hashes = [0] * n_blocks  # 0: not registered
        self._free = list(range(n_blocks))[::-1]  # a stack
        self._index: dict[int, int] = {}  # hash -> id
        self._cached: OrderedDict[int, None] = OrderedDict()  # ids, the oldest first
        self._evictions = 0

    def stats(self) -> tuple[int, int, int, int]:
        free, cached = len(self._free), len(self._cached)
        return free, len(self._refs) - free - cached, cached, self._evictions

    # ---- holding blocks ------------------------------------------------------

    def alloc(self, n: int = 1) -> list[int]:
        free, refs = self._free, self._refs
        if not 0 <= n <= len(free) + len(self._cached):
            raise ValueError(f"alloc: {n} blocks asked for, {len(free)} free and {len(self._cached)} cached")
        kept = max(0, len(free) - n)
        ids = free[kept:]
        del free[kept:]
        ids.reverse()
        if len(ids) < n:
            ids += self._evict(n - len(ids))
        for id in ids:
            refs[id] = 1
        return ids

    def _evict(self, n: int) -> list[int]:
        hashes, fills, index, popitem = self._hashes, self._fills, self._index, self._cached.popitem
        ids = [popitem(last=False)[0] for _ in range(n)]
        for id in ids:
            del index[hashes[id]]
            hashes[id] = fills[id] = 0
        self._evictions += n
        return ids

    def ref(self, ids: Sequence[int]) -> None:
        refs = self._refs
        if not all(map(refs.__getitem__, ids)):
            raise ValueError("ref: nobody holds one of the blocks")
        for id in ids:
            refs[id] += 1

    def unref(self, ids: Sequence[int]) -> None:
        refs, fills, hashes, cached, free = self._refs, self._fills, self._hashes, self._cached, self._free
        enough = all(map(refs.__getitem__, ids))
        if enough and len(set(ids)) < len(ids):
            enough = all(refs[id] >= count for id, count in Counter(ids).items())
        if not enough:
            raise ValueError("unref: a block has fewer holders than that")
        for id in reversed(ids):
            held = refs[id] = refs[id] - 1
            if held:
                continue
            if hashes[id]:
                cached[id] = None
            else:
                fills[id] = 0
                free.append(id)

    def set_fill(self, ids: Sequence[int], n: int) -> None:
        refs, fills, hashes = self._refs, self._fills, self._hashes
        if not 0 <= n <= self._block_tokens or not all(map(refs.__getitem__, ids)):
            raise ValueError("set_fill: too many tokens, or nobody holds one of the blocks")
        if any(map(hashes.__getitem__, ids)):
            raise ValueError("set_fill: one of the blocks is registered")
        for id in ids:
            fills[id] = n

    # ---- the prefix cache ----------------------------------------------------

    def register_many(self, ids: Sequence[int], hashes: Sequence[int]) -> int:
        refs, fills, known, index, full = self._refs, self._fills, self._hashes, self._index, self._block_tokens
        if len(ids) != len(hashes):
            raise ValueError("register_many: an id and a hash for each block expected")
        fresh = []
        for id, hash in zip(ids, hashes):
            if not hash or not refs[id] or fills[id] != full or known[id] not in (0, hash):
                for undone in fresh:
                    del index[known[undone]]
                    known[undone] = 0
                raise ValueError("register_many: a block that is not held, not full or known by another hash")
            if not known[id] and index.setdefault(hash, id) == id:
                known[id] = hash
                fresh.append(id)
        return len(fresh)

    def match_prefix(self, hashes: Sequence[int]) -> list[int]:
        ids = self._run(hashes)
        self._hold(ids)
        return ids

    def acquire(self, hashes: Sequence[int], n: int) -> tuple[list[int], int]:
        if n < 0:
            raise ValueError(f"acquire: {n} blocks asked for")
        ids = self._run(hashes[:n])
        hits = len(ids)
        fresh = n - hits
        if fresh > len(self._free):  # only then does it matter which of the hits are cached
            refs = self._refs
            revived = {id for id in ids if not refs[id]}
            if fresh > len(self._free) + len(self._cached) - len(revived):
                raise ValueError(f"acquire: {fresh} fresh blocks needed")
        self._hold(ids)
        ids += self.alloc(fresh)
        return ids, hits

    def _run(self, hashes: Sequence[int]) -> list[int]:
        get = self._index.get
        ids = []
        for hash in hashes:
            id = get(hash)
            if id is None:
                break
            ids.append(id)
        return ids

    def _hold(self, ids: list[int]) -> None:
        refs, cached = self._refs, self._cached
        for id in ids:
            held = refs[id]
            refs[id] = held + 1
            if not held:
                del cached[id]

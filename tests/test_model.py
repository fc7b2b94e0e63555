"""A Pool beside a model of it in plain Python, driven by hypothesis through any sequence of calls."""

from __future__ import annotations

import gc
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from tinyllm_kv import EnvelopeError, InvalidArgument, KVError, OutOfBlocks, Pool, ShapeError

B, L, H, D = 2, 1, 2, 3
ROW = 2 * H * B * D  # values of a block


class Refused(Exception):
    """The model refuses a call; the pool must raise this kind of error."""

    def __init__(self, error: type[Exception]) -> None:
        self.error = error


class Model:
    """What a pool is, in the words of its documentation; every call checks all first and then acts."""

    def __init__(self, n_blocks: int) -> None:
        self.n = n_blocks
        self.refs = [0] * n_blocks
        self.fills = [0] * n_blocks
        self.hashes = [0] * n_blocks
        self.values: list[list[int] | None] = [None] * n_blocks  # None: nobody has written
        self.free = list(reversed(range(n_blocks)))  # the last goes first
        self.lru: list[int] = []  # cached, the oldest first
        self.evictions = 0

    # -- pieces

    def index(self) -> dict[int, int]:
        return {hash: id for id, hash in enumerate(self.hashes) if hash}

    def check_used(self, ids: list[int]) -> None:
        if any(not 0 <= id < self.n or not self.refs[id] for id in ids):
            raise Refused(InvalidArgument)

    def check_room(self, n: int, revived: int = 0) -> None:
        if n > len(self.free) + len(self.lru) - revived:
            raise Refused(OutOfBlocks)

    def evict_oldest(self) -> int:
        id = self.lru.pop(0)
        self.hashes[id] = self.fills[id] = 0
        self.evictions += 1
        return id

    def take(self) -> int:
        id = self.free.pop() if self.free else self.evict_oldest()
        self.refs[id] = 1
        return id

    def hold(self, id: int) -> None:
        if id in self.lru:
            self.lru.remove(id)
        self.refs[id] += 1

    def drop(self, id: int) -> None:
        self.refs[id] -= 1
        if self.refs[id]:
            return
        if self.hashes[id]:
            self.lru.append(id)
        else:
            self.fills[id] = 0
            self.free.append(id)

    # -- the calls

    def alloc(self, n: int) -> list[int]:
        if n < 0:
            raise Refused(InvalidArgument)
        self.check_room(n)
        return [self.take() for _ in range(n)]

    def ref(self, ids: list[int]) -> None:
        self.check_used(ids)
        for id in ids:
            self.hold(id)

    def unref(self, ids: list[int]) -> None:
        self.check_used(ids)
        if any(ids.count(id) > self.refs[id] for id in ids):
            raise Refused(InvalidArgument)
        for id in reversed(ids):
            self.drop(id)

    def cow(self, id: int) -> int:
        self.check_used([id])
        if self.refs[id] == 1:
            return id
        self.check_room(1)
        copy = self.take()
        self.fills[copy], self.values[copy] = self.fills[id], self.values[id]
        self.drop(id)
        return copy

    def set_fill(self, ids: list[int], n: int | list[int]) -> None:
        fills = n if isinstance(n, list) else [n] * len(ids)
        self.check_used(ids)
        if not all(0 <= fill <= B for fill in (n if isinstance(n, list) else [n])):
            raise Refused(InvalidArgument)
        if len(fills) != len(ids) or any(self.hashes[id] for id in ids):
            raise Refused(InvalidArgument)
        for id, fill in zip(ids, fills):
            self.fills[id] = fill

    def register(self, id: int, hash: int) -> bool:
        self.check_used([id])
        if not hash or self.fills[id] < B or self.hashes[id] not in (0, hash):
            raise Refused(InvalidArgument)
        if self.index().get(hash, id) != id:
            return False
        self.hashes[id] = hash
        return True

    def register_many(self, ids: list[int], hashes: list[int]) -> int:
        before, fresh = list(self.hashes), 0
        try:
            for id, hash in zip(ids, hashes):
                known = 0 <= id < self.n and self.hashes[id] != 0
                fresh += self.register(id, hash) and not known
        except Refused:
            self.hashes = before
            raise
        return fresh

    def run(self, hashes: list[int]) -> list[int]:
        index, ids = self.index(), []
        for hash in hashes:
            if hash not in index:
                break
            ids.append(index[hash])
        return ids

    def match_prefix(self, hashes: list[int]) -> list[int]:
        ids = self.run(hashes)
        for id in ids:
            self.hold(id)
        return ids

    def lookup(self, hash: int) -> int | None:
        ids = self.match_prefix([hash])
        return ids[0] if ids else None

    def acquire(self, hashes: list[int], n: int) -> tuple[list[int], int]:
        if n < 0:
            raise Refused(InvalidArgument)
        hits = self.run(hashes)[:n]
        self.check_room(n - len(hits), revived=len(set(hits) & set(self.lru)))
        for id in hits:
            self.hold(id)
        return hits + [self.take() for _ in range(n - len(hits))], len(hits)

    def evict(self, n: int | None) -> int:
        if n is not None and n < 0:
            raise Refused(InvalidArgument)
        count = len(self.lru) if n is None else min(n, len(self.lru))
        self.free += [self.evict_oldest() for _ in range(count)]
        return count

    def check_export(self, ids: list[int]) -> None:
        self.check_used(ids)
        if any(self.fills[id] == 0 for id in ids):
            raise Refused(InvalidArgument)

    def import_(self, records: list[tuple[int, int, list[int] | None]]) -> list[int]:
        self.check_room(len(records))
        ids = [self.take() for _ in records]
        for id, (_, fill, values) in zip(ids, records):
            self.fills[id], self.values[id] = fill, values
        for id, (hash, _, _) in zip(ids, records):
            if hash and hash not in self.index():
                self.hashes[id] = hash
        return ids


def zeroed(values: list[int] | None, fill: int) -> list[int] | None:
    """Return a block's values as an envelope carries them: zeros past the fill."""
    if values is None or fill == B:
        return values
    rows = np.array(values).reshape(L, 2, H, B, D)
    rows[..., fill:, :] = 0
    kept: list[int] = rows.ravel().tolist()
    return kept


HASH = st.sampled_from([0, 1, 2, 3, 4, 5, 2**63, 2**64 - 1])
HASHES = st.lists(HASH, max_size=6)


class PoolAndModel(RuleBasedStateMachine):
    """Every rule does one thing to both; the invariant compares all that can be seen."""

    pool: Pool
    model: Model

    def __init__(self) -> None:
        super().__init__()
        self.stamp = self.steps = 0
        self.views: list[tuple[Any, Any, list[int]]] = []  # view, its copy when its pool ended, and that in numbers
        self.envelopes: list[tuple[bytes, list[tuple[int, int, list[int] | None]]]] = []

    @initialize(n=st.integers(1, 7))
    def make(self, n: int) -> None:
        self.steps = 0
        self.pool, self.model = Pool(n, B, n_layers=L, n_kv_heads=H, head_dim=D), Model(n)

    def both(self, call: str, *arguments: Any) -> Any:
        """Make the call on both and compare what comes back, or what is raised."""
        try:
            expected = getattr(self.model, call)(*arguments)
        except Refused as refusal:
            with pytest.raises(refusal.error) as caught:
                getattr(self.pool, call)(*arguments)
            assert isinstance(caught.value, KVError)
            return None
        answer = getattr(self.pool, call)(*arguments)
        if isinstance(answer, tuple):
            answer = answer[0].tolist(), answer[1]
        elif isinstance(answer, np.ndarray):
            answer = answer.tolist()
        assert answer == expected
        assert type(answer) is type(expected)
        return expected

    def id(self, data: st.DataObject) -> int:
        """Draw an id, mostly a held one."""
        held = [id for id in range(self.model.n) if self.model.refs[id]]
        near = st.integers(-1, self.model.n)
        return data.draw(st.one_of(st.sampled_from(held), st.sampled_from(held), near) if held else near)

    def ids(self, data: st.DataObject) -> list[int]:
        return [self.id(data) for _ in range(data.draw(st.integers(0, 5)))]

    # -- holding

    @rule(n=st.integers(-1, 9))
    def alloc(self, n: int) -> None:
        self.both("alloc", n)

    @rule(hashes=st.lists(HASH, min_size=1, max_size=4), release=st.booleans())
    def prompt(self, hashes: list[int], release: bool) -> None:
        """Full blocks, written and registered, perhaps let go again: what keeps the cache busy."""
        ids = self.both("alloc", len(hashes))
        if ids:
            self.both("set_fill", ids, B)
            for id in ids:
                self.write(id)
            self.both("register_many", ids, hashes)
            if release:
                self.both("unref", ids)

    @rule(data=st.data())
    def ref(self, data: st.DataObject) -> None:
        self.both("ref", self.ids(data))

    @rule(data=st.data())
    def unref(self, data: st.DataObject) -> None:
        self.both("unref", self.ids(data))

    @rule()
    def unref_all(self) -> None:
        self.both("unref", [id for id in range(self.model.n) for _ in range(self.model.refs[id])])

    @rule(data=st.data())
    def cow(self, data: st.DataObject) -> None:
        self.both("cow", self.id(data))

    @rule(data=st.data(), n=st.integers(-1, B + 1) | st.lists(st.integers(0, B + 1), max_size=3))
    def set_fill(self, data: st.DataObject, n: int | list[int]) -> None:
        self.both("set_fill", self.ids(data), n)

    @rule(n=st.none() | st.integers(-1, 4))
    def evict(self, n: int | None) -> None:
        self.both("evict", n)

    # -- the prefix cache

    @rule(data=st.data(), hash=HASH)
    def register(self, data: st.DataObject, hash: int) -> None:
        self.both("register", self.id(data), hash)

    @rule(data=st.data())
    def register_many(self, data: st.DataObject) -> None:
        ids = self.ids(data)
        self.both("register_many", ids, [data.draw(HASH) for _ in ids])

    @rule(hash=HASH)
    def lookup(self, hash: int) -> None:
        self.both("lookup", hash)

    @rule(hashes=HASHES)
    def match_prefix(self, hashes: list[int]) -> None:
        self.both("match_prefix", hashes)

    @rule(hashes=HASHES, n=st.integers(-1, 9))
    def acquire(self, hashes: list[int], n: int) -> None:
        self.both("acquire", hashes, n)

    @rule(hashes=HASHES)
    def count_prefix(self, hashes: list[int]) -> None:
        assert self.pool.count_prefix(hashes) == len(self.model.run(hashes))

    # -- envelopes

    @rule(data=st.data())
    def export(self, data: st.DataObject) -> None:
        ids = self.ids(data)
        try:
            self.model.check_export(ids)
        except Refused as refusal:
            with pytest.raises(refusal.error):
                self.pool.export(ids)
            return
        m = self.model
        records = [(m.hashes[id], m.fills[id], zeroed(m.values[id], m.fills[id])) for id in ids]
        self.envelopes.append((self.pool.export(ids), records))

    @precondition(lambda self: self.envelopes)
    @rule(data=st.data())
    def import_(self, data: st.DataObject) -> None:
        envelope, records = data.draw(st.sampled_from(self.envelopes))
        try:
            expected = self.model.import_(records)
        except Refused as refusal:
            with pytest.raises(refusal.error):
                self.pool.import_(envelope)
            return
        assert self.pool.import_(envelope).tolist() == expected

    @precondition(lambda self: self.envelopes)
    @rule(data=st.data())
    def import_broken(self, data: st.DataObject) -> None:
        envelope = bytearray(data.draw(st.sampled_from(self.envelopes))[0])
        envelope[data.draw(st.integers(0, len(envelope) - 1))] ^= 1 << data.draw(st.integers(0, 7))
        with pytest.raises((EnvelopeError, ShapeError)):
            self.pool.import_(envelope)

    # -- views

    def write(self, id: int) -> None:
        """Write to the block what was never written before, if its view lets us."""
        view = self.pool.block(id)
        own = self.model.refs[id] == 1 and not self.model.hashes[id]
        assert view.flags.writeable == own
        if own:
            self.stamp = self.stamp % 80 + 1
            view[:] = np.arange(ROW).reshape(view.shape) + self.stamp * ROW
            self.model.values[id] = list(range(self.stamp * ROW, self.stamp * ROW + ROW))

    @rule(data=st.data())
    def write_to_one(self, data: st.DataObject) -> None:
        id = self.id(data)
        if 0 <= id < self.model.n:
            self.write(id)
        else:
            with pytest.raises(IndexError):
                self.pool.block(id)

    @rule(data=st.data())
    def keep_a_view(self, data: st.DataObject) -> None:
        """Keep part of a block's view; it is read again once its pool is gone."""
        id = self.id(data)
        if 0 <= id < self.model.n and self.model.values[id] is not None:
            self.views.append((self.pool.k(id, 0)[1:].T, id, []))

    @precondition(lambda self: self.steps > 15)
    @rule(close=st.booleans(), collect=st.booleans(), n=st.integers(1, 7))
    def end_the_pool(self, close: bool, collect: bool, n: int) -> None:
        """Close the pool or drop it, and go on with another; kept views show what the blocks held last."""
        ended = []
        for view, id, values in self.views:
            if id is not None:
                block = self.model.values[id]
                assert block is not None
                values = np.array(block).reshape(L, 2, H, B, D)[0, 0, 1:].T.ravel().tolist()
            ended.append((view, None, values))
        self.views = ended[-20:]
        if close:
            self.pool.close()
            with pytest.raises(ValueError, match="closed"):
                self.pool.alloc(0)
        self.make(n)
        if collect:
            gc.collect()
        for view, _, values in self.views:
            assert view.ravel().tolist() == values

    # -- all that can be seen

    @invariant()
    def same(self) -> None:
        if not hasattr(self, "pool"):
            return
        self.steps += 1
        pool, m = self.pool, self.model
        ids = range(m.n)
        used = [id for id in ids if m.refs[id]]
        assert pool.stats() == (len(m.free), len(used), len(m.lru), m.evictions)
        assert [pool.refcount(id) for id in ids] == m.refs
        assert [pool.fill(id) for id in ids] == m.fills
        assert [pool.registered_hash(id) for id in ids] == m.hashes
        assert [pool.state(id) for id in ids] == [
            "used" if m.refs[id] else "cached" if id in m.lru else "free" for id in ids
        ]
        for id in used:
            if m.values[id] is not None:
                assert pool.block(id).ravel().tolist() == m.values[id]
        for hash in (1, 2, 3, 4, 5, 2**63, 2**64 - 1):
            assert pool.holds(hash) == (hash in m.index())

    def teardown(self) -> None:
        """Use the pool up: the order of ids is the free stack, then the eviction order."""
        if hasattr(self, "pool"):
            for _ in range(len(self.model.free) + len(self.model.lru)):
                self.both("alloc", 1)
            self.both("alloc", 1)


TestPoolAndModel = PoolAndModel.TestCase
TestPoolAndModel.settings = settings(
    max_examples=60,
    stateful_step_count=60,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much],
)

"""Random interleavings of everything that a paged cache does, against contiguous float16 caches in NumPy."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from paged_model import LAYERS, SHAPE, Dense, blocks_needed, check, computed, hash_chain, snapshot
from tinyllm_kv import Envelope, OutOfBlocks, PagedKVCache

TOKENS = st.lists(st.integers(0, 1), max_size=7)
PARENTS = st.sampled_from([0, 0, 77])


class Interleavings(RuleBasedStateMachine):
    """Sequences of two tokens, so that prefixes meet, in few blocks, so that the pool is often full."""

    def __init__(self):
        super().__init__()
        self.cache = PagedKVCache(9, 2, **SHAPE)
        self.model: dict[int, Dense] = {}
        self.exported: list[tuple[bytes, Dense]] = []
        self.born = 0
        self.named: set[tuple[int, int]] = set()

    def teardown(self):
        self.cache.close()

    def new_id(self):
        self.born += 1
        return self.born

    def pick(self, data):
        return data.draw(st.sampled_from(sorted(self.model)), label="sequence")

    def attempt(self, needed, call, *arguments, **named):
        """Make a call that needs blocks; say whether it did. It must refuse, without a trace, if they are too many."""
        before = snapshot(self.cache, self.model)
        if needed <= self.cache.num_free_blocks():
            call(*arguments, **named)
            return True
        with pytest.raises(OutOfBlocks):
            call(*arguments, **named)
        assert snapshot(self.cache, self.model) == before
        return False

    @rule(tokens=TOKENS, parent=PARENTS, told=st.booleans())
    def add(self, tokens, parent, told):
        size = self.cache.block_size
        seq = self.new_id()
        names = hash_chain(parent, tokens, size)[: max(0, len(tokens) - 1) // size] if told else []
        expected = self.cache.pool.count_prefix(np.array(names, np.uint64)) * size
        assert self.cache.add_seq(seq, tokens if told else None, parent=parent) == expected
        dense = self.model[seq] = Dense(parent, tokens, len(tokens) if told else 0)
        for layer in range(LAYERS):
            for position in range(expected):
                dense.append(layer, computed(parent, tokens[: position + 1], layer)[:, :, None])

    @precondition(lambda self: self.model)
    @rule(data=st.data(), n=st.integers(1, 5), layers=st.sampled_from([[0], [1], [0, 1], [1, 0]]))
    def append(self, data, n, layers):
        seq = self.pick(data)
        for layer in layers:
            kv = self.model[seq].next(layer, n, lambda: data.draw(st.integers(0, 1)))
            if self.attempt(blocks_needed(self.cache, [(seq, layer, n)]), self.cache.append, seq, layer, *kv):
                self.model[seq].append(layer, kv)

    @precondition(lambda self: self.model)
    @rule(data=st.data(), layer=st.integers(0, LAYERS - 1))
    def append_batch(self, data, layer):
        some = st.lists(st.sampled_from(sorted(self.model)), unique=True)
        seqs = data.draw(some, label="sequences")
        kv = [self.model[seq].next(layer, 1, lambda: data.draw(st.integers(0, 1))) for seq in seqs]
        rows = np.stack([one[:, :, 0] for one in kv], axis=1) if seqs else np.zeros((2, 0, *computed(0, [], 0).shape[1:]))
        needed = blocks_needed(self.cache, [(seq, layer, 1) for seq in seqs])
        if self.attempt(needed, self.cache.append_batch, seqs, layer, *rows):
            for seq, one in zip(seqs, kv, strict=True):
                self.model[seq].append(layer, one)

    @precondition(lambda self: self.model)
    @rule(data=st.data(), n=st.integers(0, 5))
    def extend_tokens(self, data, n):
        seq = self.pick(data)
        dense = self.model[seq]
        if dense.told is None:
            self.cache.extend_tokens(seq, [9] * n)  # nobody will see these
            return
        while len(dense.tokens) < dense.told + n:
            dense.tokens.append(data.draw(st.integers(0, 1)))
        self.cache.extend_tokens(seq, dense.tokens[dense.told : dense.told + n])
        dense.told += n

    @precondition(lambda self: self.model)
    @rule(data=st.data())
    def fork(self, data):
        seq, child = self.pick(data), self.new_id()
        self.cache.fork(seq, child)
        # The two go on with one stream of tokens: the names of blocks that they share must agree.
        self.model[child] = self.model[seq].copy()
        self.named |= {(child, i) for parent, i in self.named if parent == seq}
        shared, known = max(self.model[seq].lengths()), self.model[seq].told or 0
        del self.model[child].tokens[max(shared, known) :]

    @precondition(lambda self: self.model)
    @rule(data=st.data())
    def free(self, data):
        seq = self.pick(data)
        self.cache.free(seq)
        del self.model[seq]

    @precondition(lambda self: self.model)
    @rule(data=st.data())
    def export(self, data):
        seq = self.pick(data)
        self.exported.append((self.cache.export_seq(seq), self.model[seq].copy()))

    @precondition(lambda self: self.exported)
    @rule(data=st.data(), told=st.booleans())
    def import_(self, data, told):
        envelope, dense = data.draw(st.sampled_from(self.exported), label="envelope")
        seq, size, length = self.new_id(), self.cache.block_size, min(dense.lengths())
        known = dense.tokens if told else None
        if self.attempt(-(-length // size), self.cache.import_seq, seq, envelope, known, parent=dense.parent):
            arrived = dense.copy()
            arrived.kv = [kv[:, :, :length] for kv in dense.kv]
            if told:
                arrived.told = len(dense.tokens)
            else:  # the names go on after a block that is full and named
                del arrived.tokens[length:]
                hashes = Envelope.parse(envelope).hashes
                arrived.told = length if length % size == 0 and hashes[-1:].all() else None
                self.named |= {(seq, i) for i in range(length // size)}
            self.model[seq] = arrived

    @invariant()
    def is_a_contiguous_cache(self):
        check(self.cache, self.model)

    @invariant()
    def names_what_is_full_and_known(self):
        """A block is found under its name from the moment that it is full and its tokens are known."""
        for seq, dense in self.model.items():
            full = min(dense.lengths()) // self.cache.block_size
            for i, name in enumerate(hash_chain(dense.parent, dense.tokens[: dense.told or 0], self.cache.block_size)[:full]):
                if (seq, i) not in self.named:
                    self.named.add((seq, i))
                    assert self.cache.pool.holds(name)


TestInterleavings = Interleavings.TestCase
TestInterleavings.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)

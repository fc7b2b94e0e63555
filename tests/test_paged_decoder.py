"""A decoder cannot tell a paged cache from a contiguous one, nor two processes from one."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from examples.tiny_decoder import HEAD_DIM, HEADS, LAYERS, MAX_LEN, VOCAB, TinyDecoder
from tinyllm_kv import PagedKVCache

PROMPT = [int(token) for token in np.random.default_rng(11).integers(0, VOCAB, 13)]


class ContiguousCache:
    """Keys and values of each sequence in one float16 array, positions in a row."""

    def __init__(self):
        self.kv, self.lengths = {}, {}

    def add_seq(self, seq, _tokens):
        self.kv[seq] = np.zeros((LAYERS, 2, HEADS, MAX_LEN, HEAD_DIM), np.float16)
        self.lengths[seq] = [0] * LAYERS

    def fork(self, parent, child):
        self.kv[child], self.lengths[child] = self.kv[parent].copy(), list(self.lengths[parent])

    def seq_len(self, seq):
        return self.lengths[seq][0]

    def append(self, seq, layer, k, v):
        self.kv[seq][layer, :, :, self.lengths[seq][layer]] = np.stack([k, v])[:, :, 0]
        self.lengths[seq][layer] += 1

    def gather(self, seq, layer):
        return tuple(self.kv[seq][layer, :, :, : self.lengths[seq][layer]])


def run(cache):
    """Decode a prompt, fork it in the middle of a block, and go on with the best and the second best token."""
    model = TinyDecoder()
    cache.add_seq("best", PROMPT)
    logits = model.prefill(cache, "best", PROMPT)
    cache.fork("best", "second")
    tokens, steps = model.decode(cache, "best", logits, 20)
    second = int(logits.argsort()[-2])
    logits = model.step(cache, "second", second)
    more_tokens, more_steps = model.decode(cache, "second", logits, 20)
    return tokens, [second, *more_tokens], steps, np.stack([logits, *more_steps])


@pytest.mark.parametrize("size", [1, 4, 5, 16, 64])
def test_a_decoder_computes_the_same_through_a_fork(size):
    """Greedy tokens and logits are those of the contiguous cache, bit for bit, at any block size."""
    expected = run(ContiguousCache())
    with PagedKVCache(160, size, LAYERS, HEADS, HEAD_DIM) as cache:
        found = run(cache)
    assert found[:2] == expected[:2] and expected[0] != expected[1]
    assert len(set(expected[0])) > 3
    for mine, theirs in zip(found[2:], expected[2:], strict=True):
        assert mine.tobytes() == theirs.tobytes()


def test_a_reused_prompt_decodes_the_same():
    """A prompt that is found in the cache gives the tokens and logits that computing it gave."""
    model = TinyDecoder()
    with PagedKVCache(32, 4, LAYERS, HEADS, HEAD_DIM) as cache:
        results = []
        for expected in (0, 12):
            assert cache.add_seq("a", PROMPT) == expected
            results.append(model.decode(cache, "a", model.prefill(cache, "a", PROMPT), 9))
            cache.free("a")
    assert results[0][0] == results[1][0] and results[0][1].tobytes() == results[1][1].tobytes()


def test_two_engines_one_prompt():
    """The example runs, ships all blocks of the first prompt and only the new ones of the second, decodes the same."""
    script = Path(__file__).parent / "examples" / "two_engines.py"
    ran = subprocess.run([sys.executable, script], capture_output=True, text=True, timeout=120)
    assert (ran.returncode, ran.stderr) == (0, "")
    assert ran.stdout.splitlines() == [
        "prompt 1: 24 tokens, 5 blocks shipped, 0 held already, 20 positions not computed again; 10 tokens decoded, equal",
        "prompt 2: 28 tokens, 1 blocks shipped, 5 held already, 24 positions not computed again; 10 tokens decoded, equal",
    ]

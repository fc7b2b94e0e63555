"""A decoder of two attention layers in NumPy, the same in every process, over any cache with ``append`` and ``gather``."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

VOCAB, LAYERS, HEADS, HEAD_DIM = 61, 2, 2, 8
DIM = HEADS * HEAD_DIM
MAX_LEN = 256

Array = NDArray[np.float32]


class TinyDecoder:
    """Random weights from a fixed seed; keys and values are read back from the cache, in float16."""

    def __init__(self, seed: int = 20) -> None:
        rng = np.random.default_rng(seed)

        def weights(*shape: int) -> Array:
            made: Array = (2 * rng.standard_normal(shape) / np.sqrt(shape[-1])).astype(np.float32)
            return made

        self.tokens, self.positions, self.head = weights(VOCAB, DIM), weights(MAX_LEN, DIM), weights(VOCAB, DIM)
        self.layers = [{name: weights(DIM, DIM) for name in ("q", "k", "v", "out", "mlp")} for _ in range(LAYERS)]

    def step(self, cache: Any, seq: Any, token: int) -> Array:
        """Append one token to a sequence and return the logits of the next, float32 [VOCAB]."""
        x = self.tokens[token] + self.positions[cache.seq_len(seq)]
        for layer, w in enumerate(self.layers):
            h = x / np.sqrt(np.mean(x * x))
            q, k, v = ((w[name] @ h).reshape(HEADS, 1, HEAD_DIM) for name in ("q", "k", "v"))
            cache.append(seq, layer, k, v)
            keys, values = (part.astype(np.float32) for part in cache.gather(seq, layer))
            scores = (q * keys).sum(-1) / np.sqrt(HEAD_DIM)
            attention = np.exp(scores - scores.max(-1, keepdims=True))
            attention /= attention.sum(-1, keepdims=True)
            x = x + w["out"] @ (attention[:, :, None] * values).sum(1).reshape(DIM)
            x = x + np.tanh(w["mlp"] @ x)
        logits: Array = self.head @ x
        return logits

    def prefill(self, cache: Any, seq: Any, tokens: list[int]) -> Array:
        """Compute what the cache does not have of a prompt; return the logits after its last token."""
        for token in tokens[cache.seq_len(seq) :]:
            logits = self.step(cache, seq, token)
        return logits

    def decode(self, cache: Any, seq: Any, logits: Array, n: int) -> tuple[list[int], Array]:
        """Append the n most likely tokens, one after another; return them and the logits after each."""
        tokens, steps = [], []
        for _ in range(n):
            tokens.append(int(logits.argmax()))
            logits = self.step(cache, seq, tokens[-1])
            steps.append(logits)
        return tokens, np.stack(steps)

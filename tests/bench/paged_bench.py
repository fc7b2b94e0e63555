"""Measure a decode step of 64 sequences: append_batch beside the same write into contiguous arrays.

Both sides write one position, K and V, of one layer for each of 64 sequences (float16, 8 KV
heads, head dimension 128, blocks of 16). The contiguous cache is float16
``[n_seqs, n_kv_heads, max_len, d_head]``, one array for K and one for V, written at one
position for all sequences, which is what a dense cache does at best. The sides take turns,
so that a busy machine slows both; medians of all steps.

Prints ``name value unit`` lines. Run: ``python tests/bench/paged_bench.py``
"""

from __future__ import annotations

from statistics import median
from time import perf_counter

import numpy as np
from tinyllm_kv import PagedKVCache

N_SEQS, HEADS, HEAD_DIM, BLOCK = 64, 8, 128, 16
STEPS, ROUNDS = 256, 8


def main() -> None:
    rng = np.random.default_rng(5)
    k, v = rng.standard_normal((2, N_SEQS, HEADS, HEAD_DIM)).astype(np.float16)
    dense_k, dense_v = np.zeros((2, N_SEQS, HEADS, STEPS + BLOCK, HEAD_DIM), np.float16)
    seqs = list(range(N_SEQS))
    n_blocks = N_SEQS * (STEPS // BLOCK + 1)
    paged: list[float] = []
    dense: list[float] = []
    with PagedKVCache(n_blocks, BLOCK, 1, HEADS, HEAD_DIM) as cache:
        for warm in [True] + [False] * ROUNDS:
            for seq in seqs:  # of different lengths, as sequences are: a block ends somewhere at every step
                cache.add_seq(seq)
                if seq % BLOCK:
                    cache.append(seq, 0, *np.zeros((2, HEADS, seq % BLOCK, HEAD_DIM), np.float16))
            for step in range(STEPS):
                start = perf_counter()
                cache.append_batch(seqs, 0, k, v)
                middle = perf_counter()
                dense_k[:, :, step] = k
                dense_v[:, :, step] = v
                end = perf_counter()
                if not warm:
                    paged.append(middle - start)
                    dense.append(end - middle)
            for seq in seqs:
                cache.free(seq)
    print(f"append_batch_64 {median(paged) * 1e6:.1f} us")
    print(f"contiguous_write_64 {median(dense) * 1e6:.1f} us")
    print(f"append_batch_over_contiguous {median(paged) / median(dense):.2f} x")


if __name__ == "__main__":
    main()

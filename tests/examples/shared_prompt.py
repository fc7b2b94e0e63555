"""One system prompt, twenty requests: what sharing blocks saves.

    system prompt, 1,000 tokens    62 full blocks of 16, computed once
    20 requests                    each adds a question of its own
    request 7, four beams          share all of its blocks; each copies the last to write to it
    request 7, exported            a file that another process loads and compares

Run: ``python shared_prompt.py``. The exit status is 0 if everything is as it should be.
"""

from __future__ import annotations

import multiprocessing
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
from tinyllm_kv import PagedKVCache

BLOCK, LAYERS, HEADS, DIM = 16, 2, 2, 8
SYSTEM_PROMPT = list(range(1000))
REQUESTS = [[*SYSTEM_PROMPT, *(2000 + 100 * request + i for i in range(20))] for request in range(20)]
FORKED = 7
BEAMS = ["beam 0", "beam 1", "beam 2", "beam 3"]


def computed(tokens: list[int], layer: int, is_value: bool) -> np.ndarray:
    """Stand in for a model: the keys (or values) of some positions, float16 [HEADS, len(tokens), DIM]."""
    numbers = np.array(tokens)[None, :, None] + 7 * np.arange(HEADS)[:, None, None] + 3 * np.arange(DIM)
    return ((numbers + layer + 5 * is_value) % 509).astype(np.float16)


def new_cache() -> PagedKVCache:
    return PagedKVCache(num_blocks=200, block_size=BLOCK, n_layers=LAYERS, n_kv_heads=HEADS, d_head=DIM)


def holds(cache: PagedKVCache, sequence: object, tokens: list[int]) -> bool:
    """Return whether a sequence has the keys and values of these tokens, bit for bit."""
    return all(
        got.tobytes() == computed(tokens, layer, is_value).tobytes()
        for layer in range(LAYERS)
        for is_value, got in enumerate(cache.gather(sequence, layer))
    )


def load(path: str) -> None:
    """Load request 7 from a file, in a process of its own; exit with 1 if it is not what it was."""
    with new_cache() as cache:
        cache.import_seq("arrived", Path(path).read_bytes(), tokens=REQUESTS[FORKED])
        equal = holds(cache, "arrived", REQUESTS[FORKED])
        reused = cache.add_seq("next", REQUESTS[FORKED])
        print(f"in another process: {cache.seq_len('arrived')} positions, {'equal' if equal else 'DIFFERENT'}; "
              f"the next request reuses {reused}", flush=True)
    sys.exit(0 if equal else 1)


def main() -> int:
    right = True
    with new_cache() as cache:
        n_computed = 0
        for request, tokens in enumerate(REQUESTS):
            reused = cache.add_seq(request, tokens)
            rest = tokens[reused:]
            for layer in range(LAYERS):
                cache.append(request, layer, computed(rest, layer, False), computed(rest, layer, True))
            n_computed += len(rest)
        right &= all(holds(cache, request, tokens) for request, tokens in enumerate(REQUESTS))
        n_positions = sum(map(len, REQUESTS))
        print(f"{len(REQUESTS)} requests: {n_computed} of {n_positions} positions computed, "
              f"{cache.stats()['used']} blocks used")

        for beam in BEAMS:
            cache.fork(FORKED, beam)
        print(f"{len(BEAMS)} beams: {cache.stats()['used']} blocks used")

        chosen = [5000, 5001, 5002, 5003]  # a token for each beam
        for layer in range(LAYERS):
            k, v = (computed(chosen, layer, is_value).swapaxes(0, 1) for is_value in (False, True))
            cache.append_batch(BEAMS, layer, k, v)
        for beam, token in zip(BEAMS, chosen):
            cache.extend_tokens(beam, [token])
            right &= holds(cache, beam, [*REQUESTS[FORKED], token])
        right &= holds(cache, FORKED, REQUESTS[FORKED])
        print(f"a step of each: {cache.stats()['used']} blocks used")

        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "request.tlkv"
            path.write_bytes(cache.export_seq(FORKED))
            print(f"exported: {path.stat().st_size} bytes")

            tokens = ",".join(map(str, REQUESTS[FORKED]))
            command = Path(sys.executable).with_name("tinyllm-kv")
            inspected = subprocess.run([command, "inspect", path, "--tokens", tokens], capture_output=True, text=True)
            right &= inspected.returncode == 0
            print(f"inspected: {(inspected.stdout or inspected.stderr).splitlines()[-1]}", flush=True)

            loader = multiprocessing.get_context("spawn").Process(target=load, args=(str(path),))
            loader.start()
            loader.join()
            right &= loader.exitcode == 0

        for sequence in [*range(len(REQUESTS)), *BEAMS]:
            cache.free(sequence)
        stats = cache.stats()
        print(f"all freed: {stats['cached']} blocks cached, {stats['free']} free")
    return 0 if right else 1


if __name__ == "__main__":
    sys.exit(main())

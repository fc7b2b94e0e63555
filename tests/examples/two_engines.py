"""Two engines, one prompt: one process computes a prompt's blocks, another decodes on them.

    prefill process                               decode process
    ---------------                               --------------
    compute the prompt
    prompt, names of its full blocks  --------->  which of these does the pool hold?
                                      <---------  the names of those that it does not
    one envelope for each of them     --------->  import_
                                                  add_seq finds the blocks under their names,
                                                  computes the rest of the prompt and decodes
    compare with decoding here        <---------  tokens and logits

The second prompt begins as the first does, so that fewer blocks are shipped. Run:
``python two_engines.py``. The exit status is 0 if both processes decode the same, bit for bit.
"""

from __future__ import annotations

import multiprocessing
import sys
from multiprocessing.connection import Connection

import numpy as np
from tiny_decoder import HEAD_DIM, HEADS, LAYERS, TinyDecoder
from tinyllm_kv import PagedKVCache, block_hashes

BLOCK = 4
DECODED = 10
SYSTEM_PROMPT = [int(token) for token in np.random.default_rng(3).integers(0, 61, 21)]
PROMPTS = [[*SYSTEM_PROMPT, 7, 8, 9], [*SYSTEM_PROMPT, 40, 41, 42, 43, 44, 45, 46]]


def new_cache() -> PagedKVCache:
    return PagedKVCache(64, BLOCK, LAYERS, HEADS, HEAD_DIM)


def decode_engine(pipe: Connection) -> None:
    """Serve prompts until there is a None."""
    model = TinyDecoder()
    with new_cache() as cache:
        while (request := pipe.recv()) is not None:
            tokens, names = request
            missing = [name for name in names if not cache.pool.holds(name)]
            pipe.send(missing)
            arrived = [cache.pool.import_(pipe.recv_bytes()) for _ in missing]
            reused = cache.add_seq("request", tokens)
            for blocks in reversed(arrived):  # the sequence holds them now
                cache.pool.unref(blocks)
            logits = model.prefill(cache, "request", tokens)
            pipe.send((reused, *model.decode(cache, "request", logits, DECODED)))
            cache.free("request")


def prefill_engine(pipe: Connection) -> bool:
    """Compute the prompts, ship their blocks and compare; return whether all was equal."""
    model = TinyDecoder()
    equal = True
    with new_cache() as cache:
        for number, tokens in enumerate(PROMPTS, 1):
            cache.add_seq(number, tokens)
            logits = model.prefill(cache, number, tokens)
            names = block_hashes(tokens[:-1], BLOCK).tolist()  # the last token is the other side's to compute
            block_of = dict(zip(names, cache.block_table(number).tolist()))

            pipe.send((tokens, names))
            missing = pipe.recv()
            for name in missing:
                pipe.send_bytes(cache.pool.export([block_of[name]]))
            reused, theirs, their_logits = pipe.recv()

            ours, our_logits = model.decode(cache, number, logits, DECODED)
            same = theirs == ours and their_logits.tobytes() == our_logits.tobytes()
            equal = equal and same
            print(
                f"prompt {number}: {len(tokens)} tokens, {len(missing)} blocks shipped, "
                f"{len(names) - len(missing)} held already, {reused} positions not computed again; "
                f"{len(theirs)} tokens decoded, {'equal' if same else 'DIFFERENT'}"
            )
    pipe.send(None)
    return equal


def main() -> int:
    here, there = multiprocessing.Pipe()
    context = multiprocessing.get_context("spawn")  # two processes that share nothing but the pipe
    decoder = context.Process(target=decode_engine, args=(there,), daemon=True)
    decoder.start()
    there.close()  # the other process has it: should that end, recv fails here
    equal = prefill_engine(here)
    decoder.join()
    return 0 if equal and decoder.exitcode == 0 else 1


if __name__ == "__main__":
    sys.exit(main())

"""Answers the parity suite kv.wire.v1 with the Python package.

    echo '{"B":2,"L":1,"H":1,"D":2,"tokens":[],"values":[]}' | python tests/parity/driver.py

One case a line comes in, {"hex": "..."} a line goes out: the envelope of the sequence's blocks. The blocks
are built in one pool, exported, imported into a second pool and exported again from there, so that the
writer and the reader are both on trial. Both pools start out full of ones: what an envelope does not owe
to the case would show.

A line that is no case, or a call that fails, ends the program with status 1 and one line on standard error
that names the input line and the reason.
"""

from __future__ import annotations

import json
import sys
from typing import Any

import numpy as np

from tinyllm_kv import KVError, Pool, block_hashes


class BadCase(ValueError):
    """A line that is no case; the text says why."""


def is_integer(value: Any, least: int, most: int) -> bool:
    return type(value) is int and least <= value <= most


def no_pair_twice(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    members = dict(pairs)
    if len(members) != len(pairs):
        raise BadCase("a key stands twice")
    return members


def read_case(line: str) -> dict[str, Any]:
    """Return a line's case, checked; raise BadCase for anything else."""
    try:
        case = json.loads(line, object_pairs_hook=no_pair_twice)
    except (json.JSONDecodeError, RecursionError) as error:
        raise BadCase(f"not JSON: {error}") from None
    if not isinstance(case, dict):
        raise BadCase("a case is an object")
    for key in ("B", "L", "H", "D"):
        if not is_integer(case.get(key), 1, 2**32 - 1):
            raise BadCase(f"{key}: an integer in 1 .. 4294967295 expected, found {case.get(key)!r}")
    for key, most in (("tokens", 2**32 - 1), ("values", 2**16 - 1)):
        if not isinstance(case.get(key), list) or not all(is_integer(n, 0, most) for n in case[key]):
            raise BadCase(f"{key}: a list of integers in 0 .. {most} expected")
    expected = len(case["tokens"]) * case["L"] * 2 * case["H"] * case["D"]
    if len(case["values"]) != expected:
        raise BadCase(
            f"values: {expected} expected for {len(case['tokens'])} tokens, found {len(case['values'])}"
        )
    return case


def create_pool(case: dict[str, Any], n_blocks: int) -> Pool:
    pool = Pool(max(n_blocks, 1), case["B"], n_layers=case["L"], n_kv_heads=case["H"], head_dim=case["D"])
    pool.slab.view(np.uint16)[:n_blocks] = 0xFFFF
    return pool


def build_blocks(pool: Pool, case: dict[str, Any], n_blocks: int) -> np.ndarray:
    """Build a sequence's blocks, full ones under their chained hash; return the ids, uint32 [n_blocks]."""
    B, L, H, D = case["B"], case["L"], case["H"], case["D"]
    values = np.array(case["values"], np.uint16).reshape(len(case["tokens"]), L, 2, H, D)
    hashes = block_hashes(case["tokens"], B)
    ids = pool.alloc(n_blocks)
    for i, block in enumerate(ids):
        rows = values[i * B : (i + 1) * B].transpose(1, 2, 3, 0, 4)
        pool.block(block).view(np.uint16)[..., : rows.shape[3], :] = rows
        pool.set_fill(block, rows.shape[3])
    pool.register_many(ids[: len(hashes)], hashes)
    return ids


def answer(line: str) -> str:
    """Return the answer to a line of the suite, without the line's end."""
    case = read_case(line)
    n_blocks = -(-len(case["tokens"]) // case["B"])
    with create_pool(case, n_blocks) as writer, create_pool(case, n_blocks) as reader:
        sent = writer.export(build_blocks(writer, case, n_blocks))
        envelope = reader.export(reader.import_(sent))
    return json.dumps({"hex": envelope.hex()})


def main() -> int:
    for number, line in enumerate(sys.stdin, 1):
        try:
            print(answer(line), flush=True)
        except (BadCase, KVError) as error:
            print(f"driver: line {number}: {error}", file=sys.stderr)
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())

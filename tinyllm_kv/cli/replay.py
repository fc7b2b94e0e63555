"""``tinyllm-kv replay``: what a prefix cache of a given size would have done for recorded requests.

A trace has a request a line, a JSON object with ``timestamp``, ``input_length``,
``output_length`` and ``hash_ids``: an id for each 512 tokens of the prompt, where two
requests that begin with the same ids share that prefix. An id stands for one full block
(or, with ``--block-tokens B``, for 512/B of them), chained to the ids before it.

Each request, in the order of the file, holds the longest prefix that is cached, takes fresh
blocks for the rest, registers them, and lets go of everything, the tail first.
"""

from __future__ import annotations

import argparse
import importlib
import json
import math
import os
import stat
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from ..errors import OutOfMemory
from ..hashing import block_hashes
from ..pool import Pool
from .errors import CommandError

ID_TOKENS = 512  # what an id of a trace stands for
PROGRESS_SECONDS = 0.2  # between two lines of progress, and before the first

_DESCRIPTION = """\
Replay a trace of requests through the C pool, at one size or several.

TRACE has a JSON object a line: timestamp, input_length, output_length and
hash_ids, an id for each 512 tokens of the prompt, chained to the ids before it.
Each request holds its longest cached prefix (those blocks are the hits),
allocates and registers the rest, and is released, the tail first.

A request of more blocks than the pool has is skipped; its block references
count, as misses, so that the hit rates of all sizes have one denominator.
A size that every request is too large for has no hit rate."""


@dataclass(frozen=True)
class Result:
    """What a replay counted.

    Attributes:
        n_blocks: of the pool.
        requests, references: all of the trace's requests and their blocks, skipped ones too.
        skipped, skipped_references: the requests larger than the pool, and their blocks.
        hits: references that were found in the pool.
        evictions: cached blocks that made room.
        seconds: spent in the pool's calls.
    """

    n_blocks: int
    requests: int
    references: int
    skipped: int
    skipped_references: int
    hits: int
    evictions: int
    seconds: float

    @property
    def hit_rate(self) -> float | None:
        """Hits per reference, skipped ones too; None when none was served."""
        return self.hits / self.references if self._served else None

    @property
    def ns_per_block(self) -> float | None:
        """Nanoseconds in the pool's calls per reference that was not skipped; None without any."""
        return self.seconds * 1e9 / self._served if self._served else None

    @property
    def _served(self) -> int:
        return self.references - self.skipped_references


class Replay:
    """A replay under way, over a pool that nobody else holds blocks of meanwhile."""

    def __init__(self, pool: Pool) -> None:
        self._pool = pool
        self._evictions_before = pool.stats().evictions
        self._requests = self._references = self._skipped = self._skipped_references = 0
        self._hits = self._ns = 0

    def serve(self, hashes: NDArray[np.uint64]) -> None:
        """Admit, register and release a request of one block for each of the chained hashes."""
        pool, n = self._pool, len(hashes)
        self._requests += 1
        self._references += n
        if n > len(pool):
            self._skipped += 1
            self._skipped_references += n
            return
        start = time.perf_counter_ns()
        ids, hits = pool.acquire(hashes, n)
        if hits < n:
            fresh = ids[hits:]
            pool.set_fill(fresh, pool.cfg.block_tokens)
            pool.register_many(fresh, hashes[hits:])
        pool.unref(ids)
        self._ns += time.perf_counter_ns() - start
        self._hits += hits

    def result(self) -> Result:
        """Return the counts so far."""
        return Result(
            len(self._pool),
            self._requests,
            self._references,
            self._skipped,
            self._skipped_references,
            self._hits,
            self._pool.stats().evictions - self._evictions_before,
            self._ns / 1e9,
        )


def replay(requests: Iterable[NDArray[np.uint64]], pool: Pool) -> Result:
    """Replay requests, given as the chained hashes of their blocks, in a pool.

    Args:
        requests: uint64 ``[blocks of the request]`` each, as :func:`request_hashes` makes them.
        pool: of any shape. Nobody else holds blocks of it meanwhile.
    """
    run = Replay(pool)
    for hashes in requests:
        run.serve(hashes)
    return run.result()


def request_hashes(ids: NDArray[np.uint64], blocks_per_id: int = 1) -> NDArray[np.uint64]:
    """Return the chained hashes of a request's blocks.

    A block's tokens are the two 32-bit halves of its id, the lower first. The blocks that
    one id is split into differ by what they are chained to.

    Args:
        ids: uint64 ``[n]``.
        blocks_per_id: how many blocks an id stands for.

    Returns:
        uint64 ``[n * blocks_per_id]``.
    """
    halves = np.repeat(ids, blocks_per_id).astype("<u8", copy=False).view("<u4")
    return block_hashes(halves, 2)


# ---- reading a trace -----------------------------------------------------


def read_trace(file: Iterable[bytes], name: str) -> Iterator[NDArray[np.uint64]]:
    """Yield the ``hash_ids`` of each line of a trace, uint64 ``[n]``.

    Raises:
        CommandError: a line is no request; the text has the name, the line's number and why.
    """
    for number, line in enumerate(file, 1):
        try:
            yield _hash_ids(line)
        except _BadLine as why:
            raise CommandError(f"{name}: line {number}: {why}") from None


class _BadLine(Exception):
    """What is wrong with a line."""


def _hash_ids(line: bytes) -> NDArray[np.uint64]:
    try:
        request = json.loads(line.rstrip(b"\r\n").decode(), parse_constant=_no_constant)
    except UnicodeDecodeError as error:
        raise _BadLine(f"not UTF-8: {error.reason} at byte {error.start}") from None
    except json.JSONDecodeError as error:
        what = "empty" if not line.strip() else f"not JSON: {error.msg}, column {error.colno}"
        raise _BadLine(what) from None
    except RecursionError:
        raise _BadLine("not JSON that can be read: nested too deeply") from None
    except ValueError as error:  # an integer of thousands of digits
        raise _BadLine(f"not JSON that can be read: {error}") from None
    if not isinstance(request, dict):
        raise _BadLine(f"a JSON object expected, not {_kind(request)}")
    timestamp = _field(request, "timestamp")
    if type(timestamp) not in (int, float):
        raise _BadLine(f"timestamp: a number expected, not {_kind(timestamp)}")
    if timestamp < 0:
        raise _BadLine(f"timestamp: {timestamp} is negative")
    for key in ("input_length", "output_length"):
        _check_integer(_field(request, key), key)
    ids = _field(request, "hash_ids")
    if not isinstance(ids, list):
        raise _BadLine(f"hash_ids: an array expected, not {_kind(ids)}")
    if ids and (set(map(type, ids)) != {int} or min(ids) < 0 or max(ids) >= 2**64):
        for at, value in enumerate(ids):
            _check_integer(value, f"hash_ids[{at}]")
    return np.array(ids, np.uint64)


def _no_constant(name: str) -> None:
    raise _BadLine(f"not JSON: {name} is no number")


def _field(request: dict[str, Any], key: str) -> Any:
    if key not in request:
        raise _BadLine(f"{key} is missing")
    return request[key]


def _check_integer(value: Any, name: str) -> None:
    if type(value) is not int:
        raise _BadLine(f"{name}: an integer expected, not {_kind(value)}")
    if not 0 <= value < 2**64:
        raise _BadLine(f"{name}: {value if abs(value) < 2**128 else 'a value'} is not in 0 .. 2^64-1")


def _kind(value: Any) -> str:
    """Name a JSON value as its reader would."""
    if value is None or isinstance(value, bool):
        return json.dumps(value)
    if isinstance(value, (int, float)):
        return f"the number {value}"
    return "a string" if isinstance(value, str) else "an array" if isinstance(value, list) else "an object"


def _open(path: str) -> BinaryIO:
    return os.fdopen(os.dup(0), "rb") if path == "-" else open(path, "rb")


# ---- the command ---------------------------------------------------------


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Register the command and its arguments."""
    parser = subparsers.add_parser(
        "replay",
        help="replay a trace of requests: hits, evictions, time",
        description=_DESCRIPTION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("trace", metavar="TRACE", help="the file, or - for standard input")
    parser.add_argument(
        "--blocks", type=_sizes, required=True, metavar="N[,N...]", help="blocks of the pool, of each pool"
    )
    parser.add_argument(
        "--block-tokens",
        type=_block_tokens,
        default=ID_TOKENS,
        metavar="B",
        help="tokens of a block: each id stands for 512/B blocks (default: 512)",
    )
    shape = parser.add_argument_group(
        "shape", "of the keys of a position, all three: the slab is real, and its size is shown"
    )
    for option, text in (("layers", "layers"), ("kv-heads", "KV heads"), ("head-dim", "head dimension")):
        shape.add_argument(f"--{option}", type=_positive, metavar="N", help=text)
    parser.add_argument("--plot", metavar="FILE", help="draw the hit rates to a picture (needs matplotlib)")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.set_defaults(run=lambda args: run(args, parser.error))


def run(args: argparse.Namespace, usage_error: Callable[[str], Any]) -> int:
    """Replay the trace at every size and print what was counted."""
    given = (args.layers, args.kv_heads, args.head_dim)
    if None in given and given != (None, None, None):
        usage_error("--layers, --kv-heads and --head-dim go together")
    shape = None if None in given else (args.block_tokens, *given)
    figure = _figure() if args.plot else None  # before the work, not after it

    with _open(args.trace) as file:
        runs, without_slab = _pools(args.blocks, shape)
        name = "standard input" if args.trace == "-" else args.trace
        for ids in _with_progress(read_trace(file, name), file):
            hashes = request_hashes(ids, ID_TOKENS // args.block_tokens)
            for one in runs:
                one.serve(hashes)

    block_bytes = None if shape is None else 4 * math.prod(shape)  # keys and values, float16
    report = _report(name, args.block_tokens, block_bytes, [one.result() for one in runs], without_slab)
    if args.json:
        print(json.dumps(report))
    else:
        _print(report)
    if figure is not None:
        _draw(figure, report, args.plot)
    return 0


def _pools(sizes: list[int], shape: tuple[int, ...] | None) -> tuple[list[Replay], set[int]]:
    """Return a replay for each size, and the sizes whose slab this machine does not give.

    Nothing is counted by a block's contents, so that a pool of the smallest shape counts the
    same; pages of a slab that nobody touches take no memory, but address space.
    """
    runs, without_slab = [], set()
    for n_blocks in sizes:
        pool = None
        if shape is not None:
            try:
                B, L, H, D = shape
                pool = Pool(n_blocks, B, n_layers=L, n_kv_heads=H, head_dim=D)
            except OutOfMemory:
                without_slab.add(n_blocks)
        runs.append(Replay(pool or Pool(n_blocks, 1, n_layers=1, n_kv_heads=1, head_dim=1)))
    return runs, without_slab


def _with_progress(requests: Iterator[NDArray[np.uint64]], file: BinaryIO) -> Iterator[NDArray[np.uint64]]:
    """Pass requests on; on a terminal say now and then how far the reading is."""
    out = sys.stderr
    if not out.isatty():
        yield from requests
        return
    status = os.fstat(file.fileno())
    size = status.st_size if stat.S_ISREG(status.st_mode) else 0
    due, shown = time.monotonic() + PROGRESS_SECONDS, False
    try:
        for count, ids in enumerate(requests, 1):
            yield ids
            if time.monotonic() >= due:
                share = f"{100 * file.tell() // size:>3} %, " if size else ""
                print(f"\r{share}{count:,} requests", end="", file=out, flush=True)
                due, shown = time.monotonic() + PROGRESS_SECONDS, True
    finally:
        if shown:
            print("\r\033[K", end="", file=out, flush=True)


# ---- showing -------------------------------------------------------------


def _report(
    name: str, block_tokens: int, block_bytes: int | None, results: list[Result], without_slab: set[int]
) -> dict[str, Any]:
    """Return all that is shown: what ``--json`` prints."""
    return {
        "trace": name,
        "requests": results[0].requests,
        "references": results[0].references,
        "block_tokens": block_tokens,
        "block_bytes": block_bytes,
        "sizes": [
            {
                "blocks": r.n_blocks,
                "bytes": block_bytes and block_bytes * r.n_blocks,
                "slab": block_bytes is not None and r.n_blocks not in without_slab,
                "hits": r.hits,
                "hit_rate": r.hit_rate,
                "evictions": r.evictions,
                "skipped": r.skipped,
                "skipped_references": r.skipped_references,
                "ns_per_block": r.ns_per_block,
            }
            for r in results
        ],
    }


def _print(report: dict[str, Any]) -> None:
    sizes = report["sizes"]
    print(f"trace             {report['trace']}")
    print(f"requests          {report['requests']:,}")
    print(f"block references  {report['references']:,}")
    each = "" if report["block_bytes"] is None else f", {_size(report['block_bytes'])}"
    print(f"a block           {report['block_tokens']} tokens{each}\n")

    columns = {
        "blocks": [f"{s['blocks']:,}" for s in sizes],
        "memory": [_size(s["bytes"]) + ("" if s["slab"] else "*") for s in sizes if s["bytes"]],
        "hits": [f"{s['hits']:,}" for s in sizes],
        "hit rate": [_number(s["hit_rate"], 100, "{:.2f} %") for s in sizes],
        "evictions": [f"{s['evictions']:,}" for s in sizes],
        "skipped": [f"{s['skipped']:,}" for s in sizes],
        "ns a block": [_number(s["ns_per_block"], 1, "{:.1f}") for s in sizes],
    }
    cells = [[title, *column] for title, column in columns.items() if column]
    padded = [[f"{cell:>{max(map(len, column)) + 3}}" for cell in column] for column in cells]
    print(*("".join(row) for row in zip(*padded, strict=True)), sep="\n")

    if any(s["bytes"] and not s["slab"] for s in sizes):
        print("\n* more than this machine gives a process: the counts and the time of this row")
        print("  come from a pool of as many blocks without the slab's shape")
    if any(s["skipped"] for s in sizes):
        print("\nskipped: requests larger than the pool; their references count as misses")
    points = [(s["blocks"], s["hit_rate"]) for s in sizes if s["hit_rate"] is not None]
    if len(points) > 1:
        print(f"\n{curve(points)}")


def curve(points: list[tuple[int, float]], width: int = 64, height: int = 10) -> str:
    """Draw hit rates over pool sizes, these on a logarithmic axis.

    Args:
        points: blocks and rate (0 … 1), two or more, in ascending order of blocks.
    """
    top = next(limit for limit in (0.1, 0.2, 0.4, 0.6, 0.8, 1.0) if max(rate for _, rate in points) <= limit)
    scale = (width - 1) / math.log(points[-1][0] / points[0][0])
    at = [round(math.log(n / points[0][0]) * scale) for n, _ in points]
    heights = [rate / top * height for _, rate in points]
    grid = [[" "] * width for _ in range(height + 1)]
    for column, level in enumerate(np.interp(range(width), at, heights).tolist()):
        grid[round(level)][column] = "."
    for column, level in zip(at, heights, strict=True):
        grid[round(level)][column] = "o"

    axis = " " * width
    for i in (0, *range(len(points) - 1, 0, -1)):  # both ends first, then from the right what has room
        label = f"{points[i][0]:,}"
        start = min(at[i], width - len(label))
        if not axis[max(0, start - 2) : start + len(label) + 2].strip():
            axis = axis[:start] + label + axis[start + len(label) :]

    marks = {level: f"{100 * top * level / height:.0f} %" for level in (0, height // 2, height)}
    rows = [f"{marks.get(y, ''):>8} |{''.join(grid[y]).rstrip()}" for y in range(height, -1, -1)]
    below = [f"{'':8} +{'-' * width}", f"{'blocks':>8}  {axis.rstrip()}", f"{'':10}o measured, . interpolated"]
    return "\n".join(["hit rate", *rows, *below])


def _figure() -> Any:
    """Return an empty figure of matplotlib's, which draws to files alone."""
    try:
        return importlib.import_module("matplotlib.figure").Figure(figsize=(7, 4.5), layout="constrained")
    except ImportError:
        raise CommandError("--plot needs matplotlib: pip install matplotlib") from None


def _draw(figure: Any, report: dict[str, Any], path: str) -> None:
    axes = figure.add_subplot()
    sizes = report["sizes"]
    rates = [math.nan if s["hit_rate"] is None else 100 * s["hit_rate"] for s in sizes]
    axes.plot([s["blocks"] for s in sizes], rates, marker="o")
    axes.set(xscale="log", xlabel="blocks of the pool", ylabel="hit rate, %")
    axes.set_xticks(
        [s["blocks"] for s in sizes],
        [f"{s['blocks']:,}" + (f"\n{_size(s['bytes'])}" if s["bytes"] else "") for s in sizes],
    )
    axes.minorticks_off()
    axes.set_ylim(bottom=0)
    axes.grid(True, alpha=0.3)
    try:
        figure.savefig(path)
    except ValueError as error:  # a kind of file that it does not know
        raise CommandError(f"{path}: {error}") from None


def _number(value: float | None, scale: int, form: str) -> str:
    return "-" if value is None else form.format(scale * value)


def _size(n_bytes: int) -> str:
    size, units = float(n_bytes), iter(("KiB", "MiB", "GiB", "TiB", "PiB", "EiB"))
    unit = "B"
    while size >= 1024 and (larger := next(units, None)):
        size, unit = size / 1024, larger
    return f"{size:.4g} {unit}"


# ---- arguments -----------------------------------------------------------


def _positive(text: str) -> int:
    try:
        value = int(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"not an integer: {text!r}") from None
    if not 1 <= value < 2**32:
        raise argparse.ArgumentTypeError(f"{text} is not in 1 .. 4294967295")
    return value


def _sizes(text: str) -> list[int]:
    """Return the sizes in ascending order, each once."""
    return sorted({_positive(part) for part in text.split(",")})


def _block_tokens(text: str) -> int:
    value = _positive(text)
    if ID_TOKENS % value:
        raise argparse.ArgumentTypeError(f"{value} does not divide {ID_TOKENS}")
    return value

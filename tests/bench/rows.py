"""The rows of the benchmark's table: what is compared with what, how, and what is asked for.

A group of rows is a function that measures them together. It yields each row's key, what
was measured, and the times behind it; its decorator says what the rows are called, what
bounds them and what the machine has to have.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import pickle
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from time import process_time
from timeit import timeit
from typing import Any

import numpy as np
from measure import POOL_UNITS, Contest, Contestant, compile_c, compiler, duration, instructions, run, timed
from numpy.typing import NDArray
from plain_pool import PlainPool

import tinyllm_kv
from tinyllm_kv import PagedKVCache, Pool
from tinyllm_kv._binding import lib
from tinyllm_kv.cli.replay import ID_TOKENS, read_trace, request_hashes

MIB = 2**20
BLOCK = {"block_tokens": 16, "n_layers": 32, "n_kv_heads": 8, "head_dim": 128}  # 2 MiB


@dataclass(frozen=True)
class Scale:
    """How much is measured."""

    rounds: int = 15
    replays: int = 5  # rounds of the rows that take seconds each
    blocks: int = 32  # of 2 MiB, in the rows about 64 MiB
    checksum_mib: int = 64
    steps: int = 256  # of decoding
    requests: int | None = None  # of the trace
    short_requests: int = 2000  # of the trace, at 16-token blocks
    laps: int = 10  # of 400 operations
    sizes: tuple[int, ...] = (1_000, 1_000_000)
    churn_sizes: tuple[int, ...] = (896, 917_504)
    slab_blocks: int = 8192  # of 2 MiB: 16 GiB
    calls: int = 1000


FULL = Scale()
#: Enough to see that everything runs.
QUICK = Scale(3, 2, 2, 2, 16, 100, 40, 1, (1_000, 3_000), (896, 1_792), 16, 20)


@dataclass(frozen=True)
class Setting:
    """What a group is given."""

    scale: Scale
    folder: Path
    trace: Path | None


@dataclass(frozen=True)
class Target:
    """A row before it is measured. Its ``what`` is also its key within its group."""

    what: str
    against: str
    bound: float
    at_most: bool = False
    unit: str = "x"


@dataclass(frozen=True)
class Group:
    name: str
    targets: tuple[Target, ...]
    needs: tuple[str, ...]
    measure: Callable[[Setting], Iterator[tuple[str, float, str]]]


GROUPS: list[Group] = []

Measure = Callable[[Setting], Iterator[tuple[str, float, str]]]


def group(name: str, *targets: Target, needs: tuple[str, ...] = ()) -> Callable[[Measure], Measure]:
    def add(measure: Measure) -> Measure:
        GROUPS.append(Group(name, targets, needs, measure))
        return measure

    return add


def missing(need: str, setting: Setting) -> str | None:
    """Say how to get what a group needs, or None where it is there."""
    match need:
        case "google-crc32c":
            there = importlib.util.find_spec("google_crc32c") is not None
            return None if there else "needs google-crc32c: pip install '.[bench]'"
        case "cc":
            return None if shutil.which(compiler()[0]) else "needs a C compiler ($CC or cc)"
        case "valgrind":
            there = shutil.which("valgrind") is not None and _has_callgrind_header()
            return None if there else "needs valgrind with its headers: apt install valgrind"
        case "trace":
            return None if setting.trace else "needs a trace: --trace FILE"
    raise ValueError(need)


def _has_callgrind_header() -> bool:
    command = [*compiler(), "-E", "-x", "c", "-include", "valgrind/callgrind.h", os.devnull]
    return subprocess.run(command, capture_output=True).returncode == 0


# ---- checksums and hashes ------------------------------------------------------


@group(
    "crc32c",
    Target("crc32c, 1 MiB", "google-crc32c", 1.1),
    Target("crc32c, 64 MiB", "google-crc32c", 1.1),
    needs=("google-crc32c",),
)
def crc32c(setting: Setting) -> Iterator[tuple[str, float, str]]:
    import google_crc32c

    if google_crc32c.implementation != "c":
        raise RuntimeError("google-crc32c has no C extension here: no fair peer")
    for what, mib, times in (("crc32c, 1 MiB", 1, 20), ("crc32c, 64 MiB", setting.scale.checksum_mib, 1)):
        data = np.random.default_rng(1).bytes(mib * MIB)
        assert tinyllm_kv.crc32c(data) == google_crc32c.value(data)
        c = Contest(
            setting.scale.rounds,
            ours=timed(lambda data=data: tinyllm_kv.crc32c(data), times),
            google=timed(lambda data=data: google_crc32c.value(data), times),
        )
        yield what, c.times_as_long("google", "ours"), c.per()


@group(
    "crc32c-c",
    Target("tl_crc32c in C, 64 B", "slice-by-8 tables", 2),
    Target("tl_crc32c in C, 256 B", "slice-by-8 tables", 4),
    Target("tl_crc32c in C, 4 KiB", "slice-by-8 tables", 8),
    Target("tl_kv_block_hash, 16 tokens below 65,536", "byte-at-a-time FNV-1a", 1.6),
    needs=("cc",),
)
def crc32c_in_c(setting: Setting) -> Iterator[tuple[str, float, str]]:
    output = run([str(compile_c("crc_bench.c", setting.folder, POOL_UNITS)), str(setting.scale.checksum_mib)])
    values = {name: float(value) for name, value, _unit in map(str.split, output.splitlines())}
    for what, size in (("64 B", 64), ("256 B", 256), ("4 KiB", 4096)):
        key = f"crc32c:{size}:"
        times = f"ours {values[key + 'tl_crc32c']:.3g} GB/s, tables {values[key + 'portable']:.3g} GB/s"
        yield f"tl_crc32c in C, {what}", values[key + "tl_crc32c/portable"], times
    key = "block_hash_16_bits:16:"
    times = f"ours {values[key + 'tl_kv_block_hash']:.3g} ns, by byte {values[key + 'byte']:.3g} ns"
    yield "tl_kv_block_hash, 16 tokens below 65,536", values[key + "tl_kv_block_hash/byte"], times


@group("block_hashes", Target("block_hashes, 32,768 tokens, B 16", "sha256(pickle((parent, tokens))) a block", 30))
def block_hashes(setting: Setting) -> Iterator[tuple[str, float, str]]:
    tokens = np.random.default_rng(2).integers(0, 65_536, 32_768, np.uint32)

    def by_pickle(blocks: Iterator[list[int]]) -> list[bytes]:
        parent, hashes = b"", []
        for block in blocks:
            parent = hashlib.sha256(pickle.dumps((parent, tuple(block)))).digest()
            hashes.append(parent)
        return hashes

    def from_array() -> list[bytes]:
        return by_pickle(tokens[i : i + 16].tolist() for i in range(0, len(tokens), 16))

    def by_way_of_a_list() -> list[bytes]:
        everything = tokens.tolist()
        return by_pickle(everything[i : i + 16] for i in range(0, len(everything), 16))

    assert from_array() == by_way_of_a_list()
    ours = timed(lambda: tinyllm_kv.block_hashes(tokens, 16), 20)  # a round of about the peer's length
    c = Contest(setting.scale.rounds, ours=ours, pickle=timed(from_array), listed=timed(by_way_of_a_list))
    times = f"{c.per(2048)} a block; beside listed {c.times_as_long('listed', 'ours'):.3g} x"
    yield "block_hashes, 32,768 tokens, B 16", c.times_as_long("pickle", "ours"), times


# ---- moving blocks --------------------------------------------------------------


def _filled_pool(n: int, spare: int = 0) -> tuple[Pool, NDArray[np.uint32]]:
    """Return a pool of ``n`` full blocks of 2 MiB, held, and spare ones; and the blocks."""
    pool = Pool(n + spare, **BLOCK)
    ids = pool.alloc(n)
    pool.set_fill(ids, pool.cfg.block_tokens)
    bits = pool.slab[:n].view(np.uint16).reshape(-1)
    bits[:] = np.random.default_rng(3).integers(0, 2**16, len(bits), np.uint16)
    return pool, ids


@group(
    "export",
    Target("export_into, 64 MiB of 2 MiB blocks", "numpy.copyto", 0.8),
    Target("export_into, one 2 MiB block", "numpy.copyto", 0.45),
    Target("export (fresh bytes), 64 MiB", "ndarray.tobytes()", 0.8),
)
def export(setting: Setting) -> Iterator[tuple[str, float, str]]:
    pool, ids = _filled_pool(setting.scale.blocks)
    for what, n, times in (("64 MiB of 2 MiB blocks", len(ids), 1), ("one 2 MiB block", 1, 10)):
        some, source = ids[:n], pool.slab[:n]
        envelope, copy = bytearray(pool.export_bytes(n)), np.empty_like(source)
        c = Contest(
            setting.scale.rounds,
            ours=timed(lambda some=some, out=envelope: pool.export_into(some, out), times),
            copyto=timed(lambda copy=copy, source=source: np.copyto(copy, source), times),
        )
        yield f"export_into, {what}", c.times_as_long("copyto", "ours"), c.per()
    slab = pool.slab
    c = Contest(setting.scale.rounds, ours=timed(lambda: pool.export(ids)), tobytes=timed(slab.tobytes))
    yield "export (fresh bytes), 64 MiB", c.times_as_long("tobytes", "ours"), c.per()


@group("import", Target("import_, 64 MiB", "numpy.copyto", 0.5))
def import_(setting: Setting) -> Iterator[tuple[str, float, str]]:
    n = setting.scale.blocks
    pool, ids = _filled_pool(n, spare=n)
    envelope = pool.export(ids)
    copy = np.empty_like(pool.slab[:n])

    def ours() -> float:
        start = process_time()
        imported = pool.import_(envelope)
        seconds = process_time() - start
        pool.unref(imported)
        return seconds

    c = Contest(setting.scale.rounds, ours=ours, copyto=timed(lambda: np.copyto(copy, pool.slab[:n])))
    yield "import_, 64 MiB", c.times_as_long("copyto", "ours"), c.per()


@group("cow", Target("cow of a 2 MiB block", "numpy.copyto", 0.9))
def cow(setting: Setting) -> Iterator[tuple[str, float, str]]:
    pool, ids = _filled_pool(1, spare=1)
    shared = int(ids[0])
    source = pool.slab[0]
    copy = np.empty_like(source)

    def ours() -> None:
        pool.ref(shared)
        pool.unref(pool.cow(shared))

    c = Contest(setting.scale.rounds, ours=timed(ours, 20), copyto=timed(lambda: np.copyto(copy, source), 20))
    yield "cow of a 2 MiB block", c.times_as_long("copyto", "ours"), c.per()


@group("append_batch", Target("append_batch, 64 sequences", "one contiguous cache", 3, at_most=True))
def append_batch(setting: Setting) -> Iterator[tuple[str, float, str]]:
    n_seqs, heads, dim, block, steps = 64, 8, 128, 16, setting.scale.steps
    k, v = np.random.default_rng(5).standard_normal((2, n_seqs, heads, dim)).astype(np.float16)
    cache = PagedKVCache(n_seqs * (steps // block + 2), block, 1, heads, dim)
    dense_k, dense_v = np.zeros((2, n_seqs, heads, steps, dim), np.float16)
    rows_k, rows_v = np.zeros((2, steps, n_seqs, heads, dim), np.float16)

    def ours() -> float:
        for seq in range(n_seqs):  # of different lengths, as sequences are: a block ends somewhere at every step
            cache.add_seq(seq)
            if seq % block:
                cache.append(seq, 0, *np.zeros((2, heads, seq % block, dim), np.float16))
        start = process_time()
        for _ in range(steps):
            cache.append_batch(range(n_seqs), 0, k, v)
        seconds = process_time() - start
        for seq in range(n_seqs):
            cache.free(seq)
        return seconds / steps

    def contiguous() -> float:
        start = process_time()
        for step in range(steps):
            dense_k[:, :, step] = k
            dense_v[:, :, step] = v
        return (process_time() - start) / steps

    def by_position() -> float:
        start = process_time()
        for step in range(steps):
            rows_k[step] = k
            rows_v[step] = v
        return (process_time() - start) / steps

    c = Contest(setting.scale.rounds, ours=ours, contiguous=contiguous, by_position=by_position)
    times = f"{c.per()}; beside by_position {c.times_as_long('ours', 'by_position'):.3g} x"
    yield "append_batch, 64 sequences", c.times_as_long("ours", "contiguous"), times


# ---- replaying a trace ------------------------------------------------------------


def replay(pool: Any, requests: list[Any], block_tokens: int) -> int:
    """Serve requests, each the hashes of its blocks. Return the number of hits.

    ``pool`` is either pool, and the requests' hashes are what it takes: arrays or lists.
    """
    total = 0
    for hashes in requests:
        ids, hits = pool.acquire(hashes, len(hashes))
        fresh = ids[hits:]
        pool.set_fill(fresh, block_tokens)
        pool.register_many(fresh, hashes[hits:])
        pool.unref(ids)
        total += hits
    return total


class Replays:
    """Contestants who replay one trace in new pools of one size. They must count the same."""

    def __init__(self, trace: Path, first: int | None, block_tokens: int, n_blocks: int) -> None:
        self._size = n_blocks, block_tokens
        with open(trace, "rb") as file:
            ids = [ids for ids, _ in zip(read_trace(file, str(trace)), range(first or sys.maxsize))]
        hashes = [request_hashes(i, ID_TOKENS // block_tokens) for i in ids]
        self.requests = [h for h in hashes if len(h) <= n_blocks]
        self.n_blocks = sum(map(len, self.requests))
        self._counted: set[tuple[int, int]] = set()  # hits and evictions

    def ours(self) -> float:
        n_blocks, block_tokens = self._size
        with Pool(n_blocks, block_tokens, n_layers=1, n_kv_heads=1, head_dim=1) as pool:
            start = process_time()
            hits = replay(pool, self.requests, block_tokens)
            seconds = process_time() - start
            self._count(hits, pool.stats().evictions)
        return seconds

    def plain(self) -> Contestant:
        n_blocks, block_tokens = self._size
        requests = [hashes.tolist() for hashes in self.requests]

        def contestant() -> float:
            pool = PlainPool(n_blocks, block_tokens)
            start = process_time()
            hits = replay(pool, requests, block_tokens)
            seconds = process_time() - start
            self._count(hits, pool.stats()[3])
            return seconds

        return contestant

    def in_c(self, folder: Path) -> Contestant:
        program = compile_c("replay.c", folder, POOL_UNITS)
        file = folder / "requests"
        with open(file, "wb") as out:
            for hashes in self.requests:
                out.write(np.uint64(len(hashes)).tobytes() + hashes.tobytes())

        def contestant() -> float:
            hits, evictions, ns = run([str(program), *map(str, self._size)], stdin=file).split()
            self._count(int(hits), int(evictions))
            return float(ns) / 1e9

        return contestant

    def _count(self, hits: int, evictions: int) -> None:
        self._counted.add((hits, evictions))
        if len(self._counted) > 1:
            raise RuntimeError(f"the pools disagree about (hits, evictions): {sorted(self._counted)}")


@group(
    "replay",
    Target("replay of the trace, N 50,000, a block", "plain-Python pool", 2),
    needs=("trace",),
)
def replay_long_blocks(setting: Setting) -> Iterator[tuple[str, float, str]]:
    assert setting.trace
    r = Replays(setting.trace, setting.scale.requests, ID_TOKENS, 50_000)
    c = Contest(setting.scale.replays, ours=r.ours, plain=r.plain())
    yield "replay of the trace, N 50,000, a block", c.times_as_long("plain", "ours"), c.per(r.n_blocks)


@group(
    "replay16",
    Target("replay at 16-token blocks, N 400,000, a block", "plain-Python pool", 5),
    Target("the same from Python", "the same in C", 1.5, at_most=True),
    needs=("trace", "cc"),
)
def replay_short_blocks(setting: Setting) -> Iterator[tuple[str, float, str]]:
    assert setting.trace
    r = Replays(setting.trace, setting.scale.short_requests, 16, 400_000)
    c = Contest(setting.scale.replays, ours=r.ours, plain=r.plain(), c=r.in_c(setting.folder))
    times = c.per(r.n_blocks)
    yield "replay at 16-token blocks, N 400,000, a block", c.times_as_long("plain", "ours"), times
    yield "the same from Python", c.times_as_long("ours", "c"), times


# ---- size does not matter ----------------------------------------------------------


OPERATIONS = {
    "alloc": "alloc",
    "unref": "unref, to free",
    "unref_registered": "unref, to cached",
    "lookup": "lookup hit, revived",
    "register_evict": "register + evict",
}


@group(
    "ops",
    *(
        Target(f"{title}, 1,000 and 1,000,000 blocks", "each other, instructions", 1.1, at_most=True)
        for title in OPERATIONS.values()
    ),
    Target("register + evict, 896 and 917,504 blocks", "each other, instructions", 1.1, at_most=True),
    needs=("cc", "valgrind"),
)
def operations(setting: Setting) -> Iterator[tuple[str, float, str]]:
    scale, program = setting.scale, compile_c("ops.c", setting.folder, POOL_UNITS)

    def compare(sizes: tuple[int, ...], names: list[str], label: str) -> Iterator[tuple[str, float, str]]:
        commands = [[str(program), str(n), str(scale.laps)] for n in sizes]
        counts = [instructions(command, setting.folder / "callgrind") for command in commands]
        steps: dict[str, int] = {}
        ns: dict[str, list[list[float]]] = {name: [[] for _ in sizes] for name in OPERATIONS}
        for _ in range(scale.replays):
            for i, command in enumerate(commands):
                for line in run(command).splitlines():
                    name, *figures = line.split()
                    if name in OPERATIONS:
                        steps[name] = int(figures[0])
                        ns[name][i].append(float(figures[1]))
        for name in names:
            each = [count[name] / steps[name] for count in counts]
            figures = ", ".join(f"{i:.0f} instructions {median(t):.3g} ns" for i, t in zip(each, ns[name], strict=True))
            yield f"{OPERATIONS[name]}, {label} blocks", max(each) / min(each), figures

    yield from compare(scale.sizes, list(OPERATIONS), "1,000 and 1,000,000")
    yield from compare(scale.churn_sizes, ["register_evict"], "896 and 917,504")


@group(
    "memory",
    *(
        Target(f"memory beside the slab, {n:,} blocks", "a block", 96, at_most=True, unit="B")
        for n in (1_000, 734_004, 1_000_000)
    ),
    needs=("cc",),
)
def memory(setting: Setting) -> Iterator[tuple[str, float, str]]:
    program = compile_c("ops.c", setting.folder, POOL_UNITS)
    for n in (1_000, 734_004, 1_000_000):  # the second: just too many for half the index
        _name, n_bytes = run([str(program), str(n), "0"]).split()
        yield f"memory beside the slab, {n:,} blocks", int(n_bytes) / n, f"{int(n_bytes):,} B in all"


_CREATE = """
import re, sys, time
from tinyllm_kv import Pool
start = time.perf_counter()
pool = Pool(int(sys.argv[1]), 16, n_layers=32, n_kv_heads=8, head_dim=128)  # blocks of 2 MiB
seconds = time.perf_counter() - start
peak = re.search(r"VmHWM:\\s*(\\d+)", open("/proc/self/status").read())
print(seconds, int(peak[1]) / 1024)
"""


@group(
    "create",
    Target("create of a pool with a 16 GiB slab: memory", "", 200, at_most=True, unit="MiB"),
    Target("create of a pool with a 16 GiB slab: time", "", 0.5, at_most=True, unit="s"),
)
def create(setting: Setting) -> Iterator[tuple[str, float, str]]:
    script = setting.folder / "create.py"  # a file there, as -c would find a source folder that is the current one
    script.write_text(_CREATE)
    command = [sys.executable, str(script), str(setting.scale.slab_blocks)]
    runs = [map(float, run(command, env=dict(os.environ)).split()) for _ in range(setting.scale.replays)]
    seconds, mib = map(median, zip(*runs, strict=True))
    times = f"{duration(seconds)}, {mib:.0f} MiB resident with the interpreter"
    yield "create of a pool with a 16 GiB slab: memory", mib, times
    yield "create of a pool with a 16 GiB slab: time", seconds, times


# ---- a call -------------------------------------------------------------------------


@dataclass(frozen=True)
class Call:
    """What one call from Python costs."""

    what: str
    seconds: float
    times_empty: float  # as long as an empty cffi call


def calls(scale: Scale) -> list[Call]:
    """Measure single calls beside one of an empty C function."""
    n = scale.calls
    pool = Pool(64 * n, n_layers=2, n_kv_heads=2, head_dim=4)
    many, one = pool.alloc(64), int(pool.alloc()[0])
    pool.set_fill(one, 16)
    pool.register(one, 2**63)
    everything = np.arange(64 * n, dtype=np.uint32)
    names = {"empty": lib.tl_abi_version, "pool": pool, "one": one, "many": many, "name": 2**63}

    def call(text: str) -> Contestant:
        return lambda: timeit(text, timer=process_time, globals=names, number=n) / n

    def alloc(count: int) -> Contestant:
        other = Pool(64 * n, n_layers=1, n_kv_heads=1, head_dim=1)

        def contestant() -> float:
            given = {"alloc": other.alloc, "count": count}
            seconds = timeit("alloc(count)", timer=process_time, globals=given, number=n) / n
            other.unref(everything[: count * n])
            return seconds

        return contestant

    contestants = {
        "an empty cffi call": call("empty()"),
        "ref(id)": call("pool.ref(one)"),
        "ref(64 ids)": call("pool.ref(many)"),
        "unref(id)": call("pool.unref(one)"),
        "lookup(hash)": call("pool.lookup(name)"),
        "alloc(1)": alloc(1),
        "alloc(64)": alloc(64),
        "k(id, layer)": call("pool.k(one, 1)"),
        "stats()": call("pool.stats()"),
    }
    c = Contest(scale.rounds, **contestants)
    return [Call(what, c.seconds(what), c.times_as_long(what, "an empty cffi call")) for what in contestants]

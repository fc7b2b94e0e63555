"""The sanitized interpreter does stop at faults: planted ones, and stale reads of the pool's own blocks.

Each test runs ``tests/sanitized.py`` or one of its interpreters, so these take a while:

    pytest -m sanitized
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
import sanitized

pytestmark = pytest.mark.sanitized

ROOT = Path(__file__).resolve().parents[1]


def command(source: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run the sanitized tests against the package of a source tree."""
    return subprocess.run(
        [sys.executable, ROOT / "tests/sanitized.py", "--source", source, "-q", *arguments],
        capture_output=True,
        text=True,
        timeout=600,
    )


# ---- planted faults ----------------------------------------------------------------------------

#: name: file, what is there, what is planted, the tests that meet it, the report
PLANTS = {
    "overflow of a buffer": (
        "csrc/ext/kv_ext.c",
        "for (uint32_t id = 0; id < p->cfg.n_blocks; id++) out[id]",
        "for (uint32_t id = 0; id <= p->cfg.n_blocks; id++) out[id]",
        "test_map_draws_a_cell_a_block",
        "AddressSanitizer: heap-buffer-overflow",
    ),
    "use of a released block": (
        "csrc/ext/kv_ext.c",
        "    for (size_t i = n; i-- > 0;) kv_drop(p, ids[i]);\n    return 0;\n",
        "    for (size_t i = n; i-- > 0;) kv_drop(p, ids[i]);\n    return n ? *kv_bytes(p, ids[0]) : 0;\n",
        "test_unref_caches",
        "AddressSanitizer: use-after-poison",
    ),
    "use of freed memory": (
        "csrc/ext/kv_ext.c",
        "    pthread_mutex_destroy(&h->lock);\n    tl_free(h);\n",
        "    tl_free(h);\n    pthread_mutex_destroy(&h->lock);\n    h->pool = NULL;\n",
        "test_repr_shows",
        "AddressSanitizer: heap-use-after-free",
    ),
    "undefined arithmetic": (
        "csrc/ext/kv_ext.c",
        "    int64_t hits = 0, fresh = n - (int64_t)n_hashes;\n",
        "    int64_t hits = 0, fresh = n - (int64_t)n_hashes + (n << 40) * 100000000;\n",
        "test_acquire_holds_hits",
        "runtime error: signed integer overflow",
    ),
}


@pytest.fixture(scope="module")
def copy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a copy of what a build takes."""
    folder = tmp_path_factory.mktemp("planted")
    for part in ("include", "csrc", "tinyllm_kv"):
        shutil.copytree(ROOT / part, folder / part)
    shutil.copy(ROOT / "build_kv.py", folder)
    return folder


@pytest.mark.parametrize("plant", PLANTS)
def test_trap_16_a_planted_fault_fails_the_job(copy: Path, plant: str) -> None:
    """The command fails with the sanitizer's report, which names the file, on tests that pass without the plant."""
    path, there, planted, tests, report = PLANTS[plant]
    original = (copy / path).read_text()
    assert original.count(there) == 1
    (copy / path).write_text(original.replace(there, planted))
    try:
        done = command(copy, str(ROOT / "tests/test_pool.py"), "-k", tests)
    finally:
        (copy / path).write_text(original)
    assert report in done.stderr, done.stdout + done.stderr
    assert Path(path).name in done.stderr
    assert done.returncode != 0


def test_trap_16_without_a_plant_the_job_passes(copy: Path) -> None:
    """The control: the same tests of the same copy pass without a report."""
    tests = " or ".join(plant[3] for plant in PLANTS.values())
    done = command(copy, str(ROOT / "tests/test_pool.py"), "-k", tests)
    assert f"{len(PLANTS)} passed" in done.stdout
    assert "runtime error" not in done.stderr
    assert "ERROR: AddressSanitizer" not in done.stderr
    assert done.returncode == 0


def test_trap_16_children_are_clean(copy: Path, tmp_path: Path) -> None:
    """What a sanitized test starts has no preloaded runtime and no options that turn leak detection off."""
    probe = tmp_path / "test_probe.py"
    probe.write_text(
        textwrap.dedent(
            """
            import os, subprocess, sys
            def test_children():
                assert "libasan" in open("/proc/self/maps").read()
                text = subprocess.run(["env"], capture_output=True, text=True).stdout
                assert "LD_PRELOAD" not in text
                assert "ASAN_OPTIONS" not in text
                child = "print(open('/proc/self/maps').read())"
                assert "libasan" not in subprocess.run([sys.executable, "-c", child], capture_output=True, text=True).stdout
                import interpreter
                assert "libasan" in interpreter.run(child).stdout
            """
        )
    )
    done = command(copy, "-c", str(ROOT / "pyproject.toml"), str(probe))
    assert "1 passed" in done.stdout, done.stdout + done.stderr


# ---- blocks as memory --------------------------------------------------------------------------


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Return the environment of an interpreter with a sanitized package."""
    folder = tmp_path_factory.mktemp("sanitized")
    sanitized.build(ROOT, folder)
    return os.environ | sanitized.settings(folder)


PREPARE = """
import gc
import numpy as np
from tinyllm_kv import Pool

pool = Pool(4, 2, n_layers=1, n_kv_heads=1, head_dim=HEAD_DIM)
a, b = pool.alloc(2).tolist()
pool.slab[:2] = 1
pool.set_fill([a, b], 2)
pool.register(b, 7)
slab, own, named = pool.slab, pool.block(a), pool.block(b)
"""


def python(environment: dict[str, str], folder: Path, code: str, head_dim: int) -> subprocess.CompletedProcess[str]:
    """Run code after PREPARE in a sanitized interpreter."""
    code = PREPARE.replace("HEAD_DIM", str(head_dim)) + textwrap.dedent(code) + "\nprint('done')\n"
    return subprocess.run(
        [sys.executable, "-c", code], cwd=folder, env=environment, capture_output=True, text=True, timeout=120
    )


STALE = {
    "released": "pool.unref(a); own.tobytes()",
    "released, through the slab": "pool.unref(a); slab[a].tobytes()",
    "released, through a slice": "part = own[0, 1:]; pool.unref(a); part.copy()",
    "released, written": "pool.unref(a); own[:] = np.zeros(own.shape, np.float16)",
    "cached": "pool.unref(b); named.tobytes()",
    "evicted": "pool.unref(b); pool.evict(); named.tobytes()",
    "given up by cow": "pool.ref(a); new = pool.cow(a); pool.unref(a); own.tobytes()",
    "released together": "pool.unref([a, b]); named.tobytes()",
    "released again after a lookup": "pool.unref(b); pool.lookup(7); pool.unref(b); named.tobytes()",
}


@pytest.mark.parametrize("case", STALE)
def test_a_stale_read_stops_the_run(environment: dict[str, str], tmp_path: Path, case: str) -> None:
    """An access to a block that nobody holds any more is reported at the access, though the slab is alive."""
    *before, access = STALE[case].split("; ")
    code = "\n".join([*before, "print('before', flush=True)", access])
    done = python(environment, tmp_path, code, head_dim=2)
    assert done.stdout == "before\n"
    assert "AddressSanitizer: use-after-poison" in done.stderr
    assert done.returncode != 0


GOOD = {
    "held": "own.tobytes(); named.tobytes()",
    "never used": "slab[2:].tobytes(); pool.block(3).tobytes()",
    "looked up": "pool.unref(b); assert pool.lookup(7) == b; assert (named == 1).all(); named.tobytes()",
    "matched": "pool.unref(b); assert pool.match_prefix([7]) == [b]; named.tobytes()",
    "acquired": "pool.unref([a, b]); ids, hits = pool.acquire([7], 2); named.tobytes(); own.tobytes()",
    "handed out again": "pool.unref(a); assert pool.alloc(1) == [a]; own[:] = 2; own.tobytes()",
    "evicted and handed out": "pool.unref(b); assert len(pool.alloc(3)) == 3; named[:].tobytes()",
    "copied to": "pool.unref(a); pool.ref(b); new = pool.cow(b); assert new == a; own.tobytes(); named.tobytes()",
    "imported to": "e = pool.export([b]); pool.unref(a); assert pool.import_(e) == [a]; own.tobytes()",
    "closed": "pool.unref([a, b]); pool.close(); own.tobytes(); named.tobytes(); slab.tobytes()",
    "dropped": "pool.unref([a, b]); del pool; gc.collect(); own.tobytes(); named.tobytes(); slab.tobytes()",
    "gone": "pool.unref([a, b]); del pool, slab, own, named; gc.collect(); np.ones(1000).tobytes()",
    "a neighbour": "pool.unref(a); named.tobytes(); slab[2].tobytes(); pool.unref(b); slab[2:].tobytes()",
    "refused": "pool.unref(b); pool.alloc(2)\ntry: pool.acquire([7], 9)\nexcept RuntimeError: slab[2:].tobytes()",
}


@pytest.mark.parametrize("case", GOOD)
@pytest.mark.parametrize("head_dim", [1, 2, 3, 5])  # blocks of 8, 16, 24 and 40 bytes
def test_a_good_read_is_not_reported(
    environment: dict[str, str], tmp_path: Path, case: str, head_dim: int
) -> None:
    """What somebody holds, what nobody ever held, and all of a closed pool may be read."""
    done = python(environment, tmp_path, GOOD[case].replace("; ", "\n"), head_dim)
    assert (done.stderr, done.stdout, done.returncode) == ("", "done\n", 0)


def test_blocks_that_are_no_multiple_of_8_bytes(environment: dict[str, str], tmp_path: Path) -> None:
    """With 12-byte and 4-byte blocks no access to a held block is ever reported, whatever its neighbours are."""
    code = """
    import random
    for tokens, dim in [(3, 1), (1, 1), (1, 3), (5, 1)]:
        pool = Pool(9, tokens, n_layers=1, n_kv_heads=1, head_dim=dim)
        rng, held = random.Random(1), []
        for step in range(3000):
            if held and rng.random() < 0.5:
                pool.unref(held.pop(rng.randrange(len(held))))
            elif len(held) < 9:
                held += pool.alloc(1).tolist()
            for id in held:
                pool.block(id)[:] = np.ones(pool.block(id).shape, np.float16)
                pool.block(id).tobytes()
    """
    done = python(environment, tmp_path, code, head_dim=2)
    assert (done.stderr, done.stdout, done.returncode) == ("", "done\n", 0)

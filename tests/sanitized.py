"""Run the Python tests against an extension built with AddressSanitizer and UBSan.

    python tests/sanitized.py [--source DIR] [pytest arguments]

Builds the package's C units afresh (from DIR, a copy of this tree; from this one by
default) with gcc, and runs pytest in an interpreter with the sanitizers' runtime
preloaded. The first report ends the run. Where no path is given all Python tests run,
those marked `sanitized` too; the C tests are sanitized programs of their own already.

Leak detection is off for the interpreter alone, which never gives back all it takes.
What the tests start (compilers, C tests) gets a clean environment; an interpreter that
they start on purpose is a sanitized one again (interpreter.py).
"""

from __future__ import annotations

import argparse
import json
import os
import runpy
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
TESTS = sorted(str(path) for path in (ROOT / "tests").glob("test_*.py"))

FLAGS = [
    *("-std=gnu11", "-g", "-O1", "-fPIC", "-shared", "-pthread"),
    *("-fsanitize=address,undefined", "-fno-sanitize-recover=all", "-fno-omit-frame-pointer"),
]
OPTIONS = {
    # a small quarantine, so that a test can see that a large slab goes
    "ASAN_OPTIONS": "detect_leaks=0:allocator_may_return_null=1:quarantine_size_mb=32",
    "UBSAN_OPTIONS": "print_stacktrace=1",
}


def build(source: Path, folder: Path) -> None:
    """Put the package of a source tree into a folder, its extension built with the sanitizers."""
    shutil.copytree(
        source / "tinyllm_kv", folder / "tinyllm_kv", ignore=shutil.ignore_patterns("*.so", "__pycache__")
    )
    for part in ("include", "csrc"):
        shutil.copytree(source / part, folder / "tinyllm_kv" / part)
    generated = folder / "_kv.c"
    runpy.run_path(str(source / "build_kv.py"))["builder"]().emit_c_code(str(generated))
    includes = [source / "include", source / "csrc/ext", sysconfig.get_paths()["include"]]
    units = sorted(source.glob("csrc/*/*.c"))
    subprocess.run(
        ["gcc", *FLAGS, *(f"-I{path}" for path in includes)]
        + [str(generated), *map(str, units), "-o", str(folder / "tinyllm_kv/_kv.abi3.so")],
        check=True,
    )


def settings(folder: Path) -> dict[str, str]:
    """Return what the environment of a sanitized interpreter adds to the usual one."""
    runtimes = [
        subprocess.run(["gcc", f"-print-file-name={name}"], check=True, capture_output=True, text=True).stdout.strip()
        for name in ("libasan.so", "libubsan.so", "libstdc++.so")
    ]
    return {"LD_PRELOAD": ":".join(runtimes), "PYTHONPATH": str(folder), **OPTIONS}


def run_here(arguments: list[str]) -> int:
    """Run pytest in this interpreter, which is a sanitized one, with a clean environment for its children."""
    import interpreter
    import pytest

    interpreter.SANITIZED = json.loads(os.environ.pop("TINYLLM_KV_SANITIZED"))
    for name in interpreter.SANITIZED:
        del os.environ[name]
    return int(pytest.main(arguments))


def main(arguments: list[str]) -> int:
    """Build, and run pytest in a sanitized interpreter; return its exit status."""
    parser = argparse.ArgumentParser(prog="sanitized.py", description="the Python tests, sanitized", add_help=False)
    parser.add_argument("--source", type=Path, default=ROOT)
    given, rest = parser.parse_known_args(arguments)
    tests = [] if any(Path(word.split("::")[0]).exists() for word in rest) else TESTS
    with tempfile.TemporaryDirectory(prefix="tinyllm-kv-sanitized-") as folder:
        build(given.source.resolve(), Path(folder))
        added = settings(Path(folder))
        environment = os.environ | added | {"TINYLLM_KV_SANITIZED": json.dumps(added)}
        # fd 2 is for reports
        command = [sys.executable, __file__, "--capture=sys", "-m", "not mutants", *rest, *tests]
        return subprocess.run(command, env=environment).returncode


if __name__ == "__main__":
    sys.exit((run_here if "TINYLLM_KV_SANITIZED" in os.environ else main)(sys.argv[1:]))

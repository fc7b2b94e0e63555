"""The CRC's paths as builds: each one forced, and none outside its guarded function."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
CC = [
    *shlex.split(os.environ.get("CC", "cc")),
    *("-O2", "-std=c11", "-pedantic", "-Wall", "-Wextra", "-Werror"),
    *(f"-I{ROOT / folder}" for folder in ("include", "tests/c", "csrc/runtime")),
]
PRESENT = r"""
#include "crc32c.h"
#include <stdio.h>
int main(void)
{
    for (size_t i = 0; i < sizeof crc32c_paths / sizeof *crc32c_paths; i++)
        if (crc32c_paths[i].present()) puts(crc32c_paths[i].name);
}
"""
# What a plain CPU does not have: mnemonics, by the function that may hold them.
GUARDED = {
    "x86_64": {
        "crc32c_hardware": r"crc32",
        "crc32c_clmul": r"crc32|pclmul",
        "crc32c_avx512": r"crc32|v?pclmul|v[a-z]",
    },
    "aarch64": {"crc32c_hardware": r"crc32c", "crc32c_clmul": r"crc32c|pmull"},
}


def run(*command: str | Path) -> str:
    """Return the output of a command that must succeed."""
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, f"{command}\n{done.stdout}{done.stderr}"
    return done.stdout


@pytest.fixture(scope="module")
def present(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """The names of the paths that this CPU has, the fastest first."""
    folder = tmp_path_factory.mktemp("present")
    (folder / "present.c").write_text(PRESENT)
    run(*CC, folder / "present.c", "-o", folder / "present")
    return run(folder / "present").split()


@pytest.mark.parametrize("path", ["avx512", "clmul", "hardware", "portable"])
def test_forced_build_passes_the_suite(path: str, present: list[str], tmp_path: Path) -> None:
    """A build forced to one path passes all CRC tests, those of the copy and of tl_crc32c too."""
    if path not in present:
        pytest.skip(f"this CPU does not have {path}")
    library = [source for folder in ("runtime", "ds") for source in ROOT.glob(f"csrc/{folder}/*.c")]
    sources = [ROOT / "tests/c/test_crc32c.c", ROOT / "tests/c/kit.c", *library]
    run(*CC, f"-DTL_CRC32C_FORCE={path}", *sources, "-o", tmp_path / "forced")
    assert re.search(r"^[1-9]\d* passed, 0 failed$", run(tmp_path / "forced"), re.MULTILINE)


def test_instructions_stay_in_their_functions(tmp_path: Path) -> None:
    """A build for a plain CPU holds special instructions in the guarded functions alone."""
    machine = os.uname().machine
    if machine not in GUARDED:
        pytest.skip(f"{machine} has the portable path only")
    guarded = GUARDED[machine]
    special = re.compile("|".join(guarded.values()))
    run(*CC, "-c", ROOT / "csrc/runtime/kv_pool.c", "-o", tmp_path / "kv_pool.o")
    found: dict[str, set[str]] = {}
    function = ""
    for line in run("objdump", "-d", "--no-show-raw-insn", tmp_path / "kv_pool.o").splitlines():
        if heading := re.match(r"[0-9a-f]+ <([^>]+)>:$", line):
            function = heading[1].partition(".")[0]
        elif (instruction := re.match(r" +[0-9a-f]+:\s+(\w+)", line)) and special.match(instruction[1]):
            found.setdefault(function, set()).add(instruction[1])
    assert found.keys() == guarded.keys()
    for name, mnemonics in found.items():
        assert {m for m in mnemonics if not re.match(guarded[name], m)} == set(), name

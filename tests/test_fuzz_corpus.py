"""The fuzz targets, built by the C compiler and fed their corpus in place of libFuzzer's inventions."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from mutants.run import patched, read_mutant
from tinyllm_kv.pytest_plugin import SANITIZE, CBuild, execute

ROOT = Path(__file__).resolve().parents[1]
TARGETS = ["fuzz_import", "fuzz_roundtrip", "fuzz_ops"]


def replay(target: str, library: Path, folder: Path) -> tuple[int, str, str]:
    """Build a target over the library in a folder and run it on its corpus; return status, output, errors."""
    flags = ["-std=c11", "-pedantic", "-Wall", "-Wextra", "-Werror", *SANITIZE]
    flags += [f"-I{library / 'include'}", f"-I{library / 'csrc/runtime'}", f"-I{ROOT / 'tests/c'}", f"-I{ROOT / 'tests/fuzz'}"]
    units = [*library.glob("csrc/runtime/*.c"), *library.glob("csrc/ds/*.c"), ROOT / "tests/c/kv_check.c"]
    build = CBuild(folder, flags, [*units, ROOT / "tests/fuzz/replay_main.c"])
    program = build.program(ROOT / f"tests/fuzz/{target}.c")
    return execute([str(program), *map(str, sorted((ROOT / "fixtures/fuzz" / target).iterdir()))], 120)


def test_every_target_is_replayed() -> None:
    """A target that is added is replayed too."""
    assert sorted(path.stem for path in (ROOT / "tests/fuzz").glob("fuzz_*.c")) == sorted(TARGETS)


@pytest.mark.parametrize("target", TARGETS)
def test_the_corpus_passes(target: str, tmp_path: Path) -> None:
    """No input of the corpus finds a broken promise or a sanitizer's report."""
    status, output, errors = replay(target, ROOT, tmp_path)
    assert status == 0, errors
    assert output == f"{len(list((ROOT / 'fixtures/fuzz' / target).iterdir()))} inputs\n"


@pytest.mark.parametrize(
    ("target", "mutant"),
    [("fuzz_import", "s25"), ("fuzz_import", "s28"), ("fuzz_roundtrip", "s22"), ("fuzz_ops", "s11"), ("fuzz_ops", "m03")],
)
def test_a_planted_fault_is_found(target: str, mutant: str, tmp_path: Path) -> None:
    """The corpus finds a fault of the library: the targets can fail."""
    library = tmp_path / "library"
    for folder in ("include", "csrc"):
        shutil.copytree(ROOT / folder, library / folder)
    for file, text in patched(read_mutant(mutant)).items():
        (library / file).write_text(text)
    status, _, errors = replay(target, library, tmp_path)
    assert status not in (0, 2), errors
    assert "does not hold" in errors or "Sanitizer" in errors

"""The package's types: strict for itself, and what users are told is true and enforced."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

import tinyllm_kv

HERE = Path(__file__).resolve().parent
PACKAGE = Path(tinyllm_kv.__file__).resolve().parent


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder for mypy to run in, away from the source folder, and to keep its cache in."""
    return tmp_path_factory.mktemp("mypy")


def mypy(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run mypy --strict against the installed package."""
    config = folder / "mypy.ini"
    path = "" if PACKAGE.parent.name == "site-packages" else f"mypy_path = {PACKAGE.parent}\n"
    config.write_text(f"[mypy]\nstrict = True\nfollow_imports = silent\n{path}")
    return subprocess.run(
        [sys.executable, "-m", "mypy", "--config-file", str(config), "--no-error-summary", *arguments],
        cwd=folder,
        capture_output=True,
        text=True,
    )


def test_the_package_is_strictly_typed(folder: Path) -> None:
    """Nothing in the package is untyped, and nothing contradicts its types."""
    assert (PACKAGE / "py.typed").is_file()
    done = mypy(folder, str(HERE.parent / "tinyllm_kv"))
    assert (done.stdout, done.stderr, done.returncode) == ("", "", 0)


def test_typed_uses_are_accepted(folder: Path) -> None:
    """A file of uses, each answer assigned to its type, has no error."""
    done = mypy(folder, str(HERE / "typed_uses.py"))
    assert (done.stdout, done.stderr, done.returncode) == ("", "", 0)


def test_wrong_uses_are_refused(folder: Path) -> None:
    """A file of mistakes has just the errors that stand beside them: no answer is Any, no argument unchecked."""
    text = (HERE / "wrong_uses.py").read_text()
    expected = {
        (number, code)
        for number, line in enumerate(text.splitlines(), 1)
        if (codes := re.search(r"# error: (.*)", line))
        for code in codes[1].split(", ")
    }
    done = mypy(folder, str(HERE / "wrong_uses.py"))
    found = {(int(m[1]), m[2]) for m in re.finditer(r":(\d+): error: .*\[([\w-]+)\]", done.stdout)}
    assert found == expected, done.stdout
    assert done.returncode == 1

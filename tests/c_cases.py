"""The C tests as pytest sees them: one item for each case of tests/c/test_*.c."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from tinyllm_kv.pytest_plugin import SANITIZE, CBuild, CProgram, temporary_folder

ROOT = Path(__file__).resolve().parent.parent
C_FLAGS = (
    *("-std=c11", "-pedantic", "-Wall", "-Wextra", "-Werror"),
    *SANITIZE,
    *(f"-I{ROOT / folder}" for folder in ("include", "tests/c", "csrc/runtime")),
)
C_BUILD = pytest.StashKey[CBuild]()


def c_build(config: pytest.Config) -> CBuild:
    """Return the session's build of C tests: any of them with the kit and all of csrc/."""
    if C_BUILD not in config.stash:
        kit = [source for source in (ROOT / "tests/c").glob("*.c") if not source.name.startswith("test_")]
        units = sorted([*kit, *ROOT.glob("csrc/*/*.c")])
        config.stash[C_BUILD] = CBuild(temporary_folder(config), C_FLAGS, units)
    return config.stash[C_BUILD]


def case_names(text: str) -> list[str]:
    """Return the names in the CASES(...) table of a C test, in order; [] without one."""
    text = re.sub(r"/\*.*?\*/|//[^\n]*", " ", text, flags=re.DOTALL)
    table = re.search(r"^CASES\((.*?)\)", text, flags=re.DOTALL | re.MULTILINE)
    return [name for name in re.split(r"[\s,\\]+", table[1]) if name] if table else []


class CFile(pytest.File):
    """A C test file; nothing is compiled before its first case runs."""

    def collect(self) -> Iterator[pytest.Item]:
        names = case_names(self.path.read_text())
        if not names:
            raise self.CollectError(f"{self.path}: there is no CASES(...) table")
        for name in names:
            yield CProgram.from_parent(
                self, name=name, build=c_build(self.config), source=self.path, arguments=[name]
            )

"""Builds the C tests over changed copies of csrc/ and runs them."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Literal

from tinyllm_kv.pytest_plugin import clean_environment

ROOT = Path(__file__).resolve().parents[2]
Outcome = Literal["passed", "failed", "timed out"]
FOLDERS = ("include", "csrc", "tests/c")


class BuildError(Exception):
    """A compiler refuses; the text is its output."""


class Workshop:
    """A copy of the C sources, in which files are changed and changed back.

    Only what a change is meant for is compiled anew: units of csrc/, and tests that
    compile such a unit into themselves. The tests and their kit are those of the
    unchanged library, private headers included.
    """

    def __init__(self, folder: Path, flags: Sequence[str], tests: Iterable[str]) -> None:
        """Copy the sources to `folder` and build them.

        Args:
            folder: an empty folder, the workshop's own.
            flags: for the compiler, in all calls.
            tests: names of programs, "test_learner" for ``tests/c/test_learner.c``.

        Raises:
            BuildError: the unchanged sources do not compile.
        """
        self.folder = folder
        self.flags = [*flags, "-w", *(f"-I{folder / name}" for name in ("include", "tests/c", "csrc/runtime", "csrc/ext"))]
        for name in FOLDERS:
            shutil.copytree(ROOT / name, folder / name)
        self.tests = {name: folder / "tests/c" / f"{name}.c" for name in tests}
        helpers = [path for path in (folder / "tests/c").glob("*.c") if not path.name.startswith("test_")]
        self._common = sorted([*helpers, *folder.glob("csrc/*/*.c")])
        sources = [*self._common, *self.tests.values()]
        self._includes = {source: self._included_by(source) for source in sources}
        self._objects = {source: self._compile(source, "right") for source in sources}
        self._changed: dict[Path, Path] = {}
        self._files: set[str] = set()

    def change(self, name: str, text: str) -> list[Path]:
        """Give the file `name` ("csrc/ds/swiss.c") this text and compile what it is meant for.

        Returns:
            the new object files.

        Raises:
            BuildError: it does not compile.
        """
        path = self.folder / name
        path.write_text(text)
        self._files.add(name)
        affected = [
            source
            for source, included in self._includes.items()
            if path in included and (path.suffix == ".c" or source.is_relative_to(self.folder / "csrc"))
        ]
        made = {source: self._compile(source, "changed") for source in affected}
        self._changed |= made
        return list(made.values())

    def reset(self) -> None:
        """Take all changes back."""
        for name in self._files:
            shutil.copyfile(ROOT / name, self.folder / name)
        self._files.clear()
        self._changed.clear()

    def link(self, test: str) -> Path:
        """Return the program of a test, with all changes."""
        objects = [self._changed.get(source, self._objects[source]) for source in [*self._common, self.tests[test]]]
        program = self.folder / test
        self._cc(*map(str, objects), "-o", str(program), "-pthread", "-lm")
        return program

    def _compile(self, source: Path, tag: str) -> Path:
        out = self.folder / "-".join([tag, *source.relative_to(self.folder).parts, "o"])
        self._cc("-c", str(source), "-o", str(out))
        return out

    def _included_by(self, source: Path) -> set[Path]:
        words = self._cc("-MM", str(source)).replace("\\\n", " ").split(":", 1)[1].split()
        return {Path(word).resolve() for word in words}

    def _cc(self, *arguments: str) -> str:
        done = subprocess.run(
            ["gcc", *self.flags, *arguments],
            env=clean_environment(),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="backslashreplace",
        )
        if done.returncode != 0:
            raise BuildError(done.stderr)
        return done.stdout


def case_names(program: Path) -> list[str]:
    """Return the names of a C test's cases, in order."""
    return subprocess.run([program, "--list"], check=True, capture_output=True, text=True).stdout.split()


def outcome(program: Path, cases: Sequence[str] = (), seconds: float = 20.0) -> Outcome:
    """Run a C test, or some of its cases; once more when it is not done in time: the machine may have been busy."""
    for _ in range(2):
        try:
            done = subprocess.run(
                [program, *cases],
                env=clean_environment(),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                timeout=seconds,
            )
        except subprocess.TimeoutExpired:
            continue
        return "passed" if done.returncode == 0 else "failed"
    return "timed out"


def passes(program: Path, cases: Sequence[str] = (), seconds: float = 20.0) -> bool:
    """Return whether the outcome is a pass."""
    return outcome(program, cases, seconds) == "passed"

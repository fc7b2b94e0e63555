"""Runs the 32 wrong implementations beside this file against the tests that are meant for them.

    cd tests && python -m mutants.run [s11 ...]

A patch states its fault in words, the tests of ``tests/c/test_kv_pool.c`` of which one has to
kill it, and what it changes: for each ``@@ FILE`` lines as in a diff, whose old text has to
stand exactly once in the file. A case kills a mutant when it fails, crashes, is reported by a
sanitizer, or does not end.
"""

from __future__ import annotations

import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from mutants.workshop import ROOT, Workshop, case_names, passes
from tinyllm_kv.pytest_plugin import SANITIZE

NAMES = [*(f"s{n:02}" for n in range(1, 31) if n != 26), "m01", "m02", "m03"]
POOL, LEARNER = "test_kv_pool", "test_learner"


class PatchError(Exception):
    """A patch does not apply, or cannot be read."""


@dataclass(frozen=True)
class Mutant:
    """One wrong implementation."""

    name: str
    fault: str
    tests: tuple[str, ...]
    hunks: tuple[tuple[str, str, str], ...]  # file, old text, new text


@dataclass(frozen=True)
class Verdict:
    """Which cases kill a mutant."""

    mutant: Mutant
    pool: tuple[str, ...]
    learner: tuple[str, ...]

    @property
    def by_named(self) -> bool:
        """Whether a test that is meant for the mutant kills it."""
        return any(test in self.pool for test in self.mutant.tests)


def read_mutant(name: str) -> Mutant:
    """Read ``NAME.patch``.

    Raises:
        PatchError: it has not the form of a patch.
    """
    head, *parts = (Path(__file__).parent / f"{name}.patch").read_text().split("\n@@ ")
    fields = dict(line.split(": ", 1) for line in head.splitlines())
    hunks = []
    for part in parts:
        file, *lines = part.rstrip("\n").split("\n")
        if not lines or any(line[0] not in " +-" for line in lines):
            raise PatchError(f"{name}: a line of a hunk begins with ' ', '+' or '-'")
        old = "\n".join(line[1:] for line in lines if line[0] != "+")
        new = "\n".join(line[1:] for line in lines if line[0] != "-")
        hunks.append((file, old, new))
    if set(fields) != {"fault", "tests"} or not hunks:
        raise PatchError(f"{name}: a fault, tests and at least one hunk expected")
    return Mutant(name, fields["fault"], tuple(fields["tests"].split()), tuple(hunks))


def patched(mutant: Mutant) -> dict[str, str]:
    """Return the changed files' new texts.

    Raises:
        PatchError: an old text does not stand exactly once in its file.
    """
    texts: dict[str, str] = {}
    for file, old, new in mutant.hunks:
        text = texts.get(file) or (ROOT / file).read_text()
        if text.count(old) != 1:
            raise PatchError(f"{mutant.name}: the old text stands {text.count(old)} times in {file}:\n{old}")
        texts[file] = text.replace(old, new)
    return texts


class Court:
    """Judges mutants, one after the other."""

    def __init__(self, folder: Path) -> None:
        """Build in `folder`, and see that the right implementation passes every case."""
        self.workshop = Workshop(folder, ["-std=c11", *SANITIZE], [POOL, LEARNER])
        self.cases = {test: case_names(self.workshop.link(test)) for test in (POOL, LEARNER)}
        for test in self.cases:
            if killers := self._killers(test):
                raise AssertionError(f"the unchanged library does not pass {', '.join(killers)}")

    def judge(self, mutant: Mutant) -> Verdict:
        """Build a mutant and run all cases, each alone.

        Raises:
            PatchError: the patch does not apply.
            BuildError: the mutant does not compile.
        """
        if unknown := set(mutant.tests) - set(self.cases[POOL]):
            raise PatchError(f"{mutant.name}: there is no test {', '.join(unknown)}")
        texts = patched(mutant)
        try:
            for file, text in texts.items():
                self.workshop.change(file, text)
            return Verdict(mutant, self._killers(POOL), self._killers(LEARNER))
        finally:
            self.workshop.reset()

    def _killers(self, test: str) -> tuple[str, ...]:
        program = self.workshop.link(test)
        return tuple(case for case in self.cases[test] if not passes(program, [case]))


def table(verdicts: list[Verdict]) -> str:
    """Return the table of verdicts; the tests that are meant for a mutant are marked with a *."""
    lines = []
    for verdict in verdicts:
        mutant = verdict.mutant
        pool = ", ".join(f"{test}*" if test in mutant.tests else test for test in verdict.pool)
        lines += [
            f"{mutant.name}  {mutant.fault}",
            f"     killed as meant: {'yes' if verdict.by_named else 'NO, not by ' + ' or '.join(mutant.tests)}",
            f"     by {pool or 'none'}",
            f"     by learner tests: {', '.join(verdict.learner) or 'none'}",
        ]
    lines.append(
        f"{len(verdicts)} mutants: {sum(v.by_named for v in verdicts)} killed as meant, "
        f"{sum(bool(v.learner) for v in verdicts)} by the learner tests alone"
    )
    return "\n".join(lines)


def main(arguments: list[str]) -> int:
    """Judge the mutants named, all by default; print the table."""
    with tempfile.TemporaryDirectory() as folder:
        court = Court(Path(folder))
        verdicts = [court.judge(read_mutant(name)) for name in arguments or NAMES]
    print(table(verdicts))
    return 0 if all(verdict.by_named for verdict in verdicts) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

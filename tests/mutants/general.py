"""General mutation of the C core: a seeded sample of small changes, of which the C tests have to kill 95 %.

    pip install universalmutator
    cd tests && python -m mutants.general [--count 1000] [--seed 1] [--jobs 2]

The changes are universalmutator's for C: operators, constants, conditions, statements taken away.
One counts when it builds, and to other code than the original and every other mutant (compared as
object files at -O2). It is killed when a C test fails, crashes or, twice, does not end, first in that
build and then, if it is still alive, under sanitizers. Those that do not end are counted apart.

Each survivor has to stand in ``equivalent.txt`` with the reason why no test can tell it from the
original. The exit status is 0 when as many mutants as asked for were judged, 95 % die and all survivors are explained.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import io
import re
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue

from mutants.workshop import ROOT, BuildError, Outcome, Workshop, outcome
from tinyllm_kv.pytest_plugin import SANITIZE

#: What is mutated, and the tests that it can reach, in the order in which they are tried.
POOL_TESTS = (
    *("test_learner", "test_kv_pool", "test_messages", "test_limits", "test_import", "test_export"),
    *("test_random", "test_kv_check", "test_large_envelope", "test_prefix"),
)
TARGETS = {
    "csrc/runtime/kv_pool.c": POOL_TESTS,
    "csrc/runtime/kv_pool_impl.h": POOL_TESTS,
    "csrc/ds/swiss.c": ("test_swiss", "test_kv_pool", "test_random", "test_prefix"),
}
#: The tests in which sanitizers look for what is still alive.
SANITIZED = ("test_kv_pool", "test_limits", "test_import", "test_poison", "test_swiss")
TESTS = sorted({test for tests in (*TARGETS.values(), SANITIZED) for test in tests})
RULES = ["universal.rules", "c_like.rules", "c.rules"]
EQUIVALENT = Path(__file__).parent / "equivalent.txt"
LEAST = 0.95


@dataclass(frozen=True)
class Mutant:
    """A file in which one line is another."""

    file: str
    line: int
    old: str
    new: str

    @property
    def key(self) -> tuple[str, str, str]:
        """What names it as long as nobody edits the line."""
        return self.file, " ".join(self.old.split()), " ".join(self.new.split())

    def __str__(self) -> str:
        _, old, new = self.key
        return f"{self.file}:{self.line}\n  - {old}\n  + {new}"


def without_comments(text: str) -> str:
    """Return C source with its comments blanked and its lines where they were."""
    blank = re.sub(r"/\*.*?\*/", lambda comment: "\n" * comment[0].count("\n"), text, flags=re.DOTALL)
    return re.sub(r"[ \t]+$", "", blank, flags=re.MULTILINE)


def source_of(file: str) -> list[str]:
    return without_comments((ROOT / file).read_text()).splitlines(keepends=True)


def mutants_of(file: str) -> list[Mutant]:
    """Return all changes of one file, in order."""
    from universalmutator.mutator import mutants_regexp

    source = source_of(file)
    with contextlib.redirect_stdout(io.StringIO()):
        found = mutants_regexp(source, RULES, ignorePatterns=[], ignoreStringOnly=True)
    return [Mutant(file, line, source[line - 1].strip(), text.strip()) for line, text, *_ in found]


def mutated(mutant: Mutant) -> str:
    """Return the file's text with the mutant's line."""
    source = source_of(mutant.file)
    source[mutant.line - 1] = mutant.new + "\n"
    return "".join(source)


def read_equivalent() -> dict[tuple[str, str, str], str]:
    """Return the explained survivors and their reasons."""
    found: dict[tuple[str, str, str], str] = {}
    for record in EQUIVALENT.read_text().split("\n\n"):
        if record.startswith("#"):
            continue
        file, old, new, *reason = (line.strip() for line in record.strip("\n").split("\n"))
        if old[:2] != "- " or new[:2] != "+ " or not any(reason):
            raise ValueError(f"{EQUIVALENT.name}: a file, '- ' a line, '+ ' a line and a reason expected:\n{record}")
        found[file, old[2:], new[2:]] = " ".join(reason)
    return found


def shuffled(mutants: Iterable[Mutant], seed: int) -> list[Mutant]:
    """Return mutants in an order in which each has a place of its own: editing a line moves no other line's."""
    seen: Counter[tuple[str, str, str]] = Counter()

    def place(mutant: Mutant) -> bytes:
        seen[mutant.key] += 1
        return hashlib.sha256(repr((seed, mutant.key, seen[mutant.key])).encode()).digest()

    return sorted(mutants, key=place)


@dataclass(frozen=True)
class Death:
    """The test that kills a mutant, and how."""

    test: str
    how: Outcome

    def __str__(self) -> str:
        return f"{self.test} {self.how}"


class Bench:
    """A worker's place: an optimized build and a sanitized one."""

    def __init__(self, folder: Path) -> None:
        self.plain = Workshop(folder / "plain", ["-std=c11", "-O2"], TESTS)
        self.sanitized = Workshop(folder / "sanitized", ["-std=c11", *SANITIZE], SANITIZED)

    def change(self, file: str, text: str) -> bytes:
        """Change a file in the optimized build; return a digest of what it compiles to.

        Raises:
            BuildError: it does not compile.
        """
        return hashlib.sha256(b"".join(made.read_bytes() for made in self.plain.change(file, text))).digest()

    def killer(self, mutant: Mutant, seconds: Mapping[str, float]) -> Death | None:
        """Return what kills a mutant, which is in the optimized build; None for a survivor.

        Raises:
            BuildError: it does not link.
        """
        for test in TARGETS[mutant.file]:
            if (how := outcome(self.plain.link(test), seconds=seconds[test])) != "passed":
                return Death(test, how)
        self.sanitized.change(mutant.file, mutated(mutant))
        for test in SANITIZED:
            if (how := outcome(self.sanitized.link(test), seconds=seconds[test])) != "passed":
                return Death(test, how)
        return None

    def reset(self) -> None:
        self.plain.reset()
        self.sanitized.reset()

    def baseline(self) -> dict[str, float]:
        """See that the unchanged library passes everything; return how long a mutant may take for each test."""
        seconds = {}
        for workshop, tests in ((self.plain, TESTS), (self.sanitized, SANITIZED)):
            for test in tests:
                began = time.monotonic()
                if outcome(workshop.link(test), seconds=300) != "passed":
                    raise AssertionError(f"the unchanged library does not pass {test}")
                seconds[test] = 5 + 5 * (time.monotonic() - began)
        return seconds


def judge(count: int, seed: int, jobs: int, folder: Path) -> dict[Mutant, Death | None]:
    """Return a sample of mutants, each of other code, and what kills each (None: it is alive)."""
    candidates = shuffled((mutant for file in TARGETS for mutant in mutants_of(file)), seed)
    benches: SimpleQueue[Bench] = SimpleQueue()
    for job in range(jobs):
        benches.put(Bench(folder / str(job)))
    bench = benches.get()
    seconds = bench.baseline()
    seen = set()
    for file in TARGETS:
        seen.add(bench.change(file, "".join(source_of(file))))
        bench.reset()
    benches.put(bench)

    def verdict(mutant: Mutant) -> tuple[bool, Death | None]:
        """Whether the mutant counts, and what kills it."""
        bench = benches.get()
        try:
            code = bench.change(mutant.file, mutated(mutant))
            if code in seen:
                return False, None
            seen.add(code)
            return True, bench.killer(mutant, seconds)
        except BuildError:
            return False, None
        finally:
            bench.reset()
            benches.put(bench)

    verdicts: dict[Mutant, Death | None] = {}
    with ThreadPoolExecutor(jobs) as pool:
        for mutant, (counts, death) in zip(candidates, pool.map(verdict, candidates)):
            if not counts:
                continue
            verdicts[mutant] = death
            print(f"{death or 'alive'}: {mutant}", flush=True)
            if len(verdicts) == count:
                pool.shutdown(cancel_futures=True)
                break
    return verdicts


def main(arguments: list[str]) -> int:
    """Judge a sample and say which survivors nobody has explained."""
    parser = argparse.ArgumentParser(description="General mutation of the C core.")
    parser.add_argument("--count", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--jobs", type=int, default=2)
    options = parser.parse_args(arguments)
    explained = read_equivalent()
    if gone := set(explained) - {mutant.key for file in TARGETS for mutant in mutants_of(file)}:
        print(f"{EQUIVALENT.name} explains what there is not: {sorted(gone)}")
        return 1
    with tempfile.TemporaryDirectory() as folder:
        verdicts = judge(options.count, options.seed, options.jobs, Path(folder))

    return verdict_on(verdicts, options.count, explained)


def verdict_on(verdicts: Mapping[Mutant, Death | None], count: int, explained: Mapping[tuple[str, str, str], str]) -> int:
    """Print the summary of a sample that should have `count` mutants; return the exit status."""
    for file in TARGETS:
        deaths = [death for mutant, death in verdicts.items() if mutant.file == file]
        print(f"{file}: {len(deaths) - deaths.count(None)} of {len(deaths)} killed")
    alive = [mutant for mutant, death in verdicts.items() if death is None]
    for mutant in alive:
        print(f"{mutant}\n  {explained.get(mutant.key, 'NOT EXPLAINED')}\n")
    endless = sum(death is not None and death.how == "timed out" for death in verdicts.values())
    killed = len(verdicts) - len(alive)
    unexplained = sum(mutant.key not in explained for mutant in alive)
    print(
        f"{killed} of {len(verdicts)} killed ({killed / max(1, len(verdicts)):.1%}), {killed - endless} by a failure and "
        f"{endless} by not ending twice; {len(alive)} alive, {unexplained} not explained"
    )
    if len(verdicts) < count:
        print(f"{count} mutants were asked for, there are {len(verdicts)}")
        return 1
    return 0 if killed >= LEAST * len(verdicts) and not unexplained else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

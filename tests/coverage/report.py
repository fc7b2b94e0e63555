"""Says which lines and branches of csrc/ the C tests do not run.

    python tests/coverage/report.py

Builds all C tests with gcc's coverage, runs them, and adds up what every object that holds code of
csrc/ has counted: the library's units, and tests that compile one into themselves. A line is covered
when it has run and each of its branches has been taken.

``exceptions.txt`` beside this file lists what cannot be reached, with reasons. The exit status is 1
when anything else is missed, and also when something listed is covered: the list cannot go stale.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
EXCEPTIONS = Path(__file__).parent / "exceptions.txt"
FLAGS = ["-std=c11", "-O0", "--coverage", "-fprofile-update=atomic"]
INCLUDES = [f"-I{ROOT / folder}" for folder in ("include", "tests/c", "csrc/runtime", "csrc/ext")]

#: What only some CPUs can run: functions, and the flags in /proc/cpuinfo that they need.
CPU_PATHS = {
    "crc32c_avx512": {"avx512f", "vpclmulqdq"},
    "crc32c_clmul": {"sse4_2", "pclmulqdq"},
    "crc32c_hardware": {"sse4_2"},
}


#: How the reason of an exception begins that other machines may cover.
BY_CPU = "depends on the CPU"


@dataclass
class Line:
    """What all objects together have counted for one line."""

    count: int = 0
    branches: dict[int, list[int]] = field(default_factory=dict)  # of each number of branches, their counts

    def add(self, entry: dict[str, Any]) -> None:
        self.count += entry["count"]
        counts = [branch["count"] for branch in entry["branches"]]
        known = self.branches.setdefault(len(counts), [0] * len(counts))
        self.branches[len(counts)] = [a + b for a, b in zip(known, counts)]

    @property
    def fault(self) -> str:
        """What is missed, "" for nothing. Copies of a line are judged by the best one."""
        if self.count == 0:
            return "never run"
        missed, of = min((counts.count(0), of) for of, counts in self.branches.items())
        return f"{missed} of {of} branches never taken" if missed else ""


def run(command: list[str], folder: Path) -> str:
    environment = {key: value for key, value in os.environ.items() if not key.startswith(("GCOV", "KV_"))}
    done = subprocess.run(command, cwd=folder, env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"{' '.join(command)}\n{done.stdout}{done.stderr}")
    return done.stdout


def build_and_run(folder: Path) -> None:
    """Leave the counts of all C tests in a folder."""
    sources = sorted([*ROOT.glob("csrc/*/*.c"), *ROOT.glob("tests/c/*.c")])

    def compiled(source: Path) -> Path:
        out = folder / ("-".join(source.relative_to(ROOT).parts) + ".o")
        run(["gcc", *FLAGS, *INCLUDES, "-c", str(source), "-o", str(out)], folder)
        return out

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        objects = dict(zip(sources, pool.map(compiled, sources)))
    common = [str(made) for source, made in objects.items() if not source.name.startswith("test_")]
    for source, made in objects.items():
        if source.name.startswith("test_"):
            program = folder / source.stem
            run(["gcc", "--coverage", str(made), *common, "-o", str(program), "-pthread", "-lm"], folder)
            run([str(program)], folder)


def cannot_run() -> set[str]:
    """Return the functions that this CPU has no instructions for."""
    flags = set(Path("/proc/cpuinfo").read_text().split())
    return {function for function, needed in CPU_PATHS.items() if not needed <= flags}


def counts(folder: Path) -> dict[str, dict[int, Line]]:
    """Return the counts of every file of csrc/, by line."""
    lines: dict[str, dict[int, Line]] = defaultdict(lambda: defaultdict(Line))
    skipped = cannot_run()
    for data in sorted(folder.glob("*.gcda")):
        for report in run(["gcov", "--json-format", "--stdout", "--branch-probabilities", data.name], folder).splitlines():
            for file in json.loads(report)["files"]:
                path = Path(os.path.normpath(folder / file["file"]))
                if not path.is_relative_to(ROOT / "csrc"):
                    continue
                for entry in file["lines"]:
                    if entry.get("function_name") not in skipped:
                        lines[str(path.relative_to(ROOT))][entry["line_number"]].add(entry)
    return lines


def read_exceptions() -> dict[tuple[str, str], str]:
    """Return the reasons by file and text of the line."""
    found = {}
    for record in EXCEPTIONS.read_text().split("\n\n"):
        if record.startswith("#"):
            continue
        file, line, *reason = (part.strip() for part in record.strip("\n").split("\n"))
        if not any(reason):
            raise ValueError(f"{EXCEPTIONS.name}: a file, a line and a reason expected:\n{record}")
        found[file, line] = " ".join(reason)
    return found


def main() -> int:
    """Print the report."""
    with tempfile.TemporaryDirectory() as name:
        build_and_run(Path(name))
        lines = counts(Path(name))
    exceptions = read_exceptions()
    unused = {key for key, reason in exceptions.items() if not reason.startswith(BY_CPU)}
    unlisted = 0
    for path in sorted(ROOT.glob("csrc/*/*.[ch]")):
        file = str(path.relative_to(ROOT))
        text = path.read_text().splitlines()
        faults = {number: line.fault for number, line in lines[file].items() if line.fault}
        branches = sum(max(line.branches) for line in lines[file].values())
        print(f"{file}: {len(lines[file])} lines, {branches} branches, {len(faults)} lines not covered")
        for number, fault in sorted(faults.items()):
            key = file, text[number - 1].strip()
            reason = exceptions.get(key)
            unused.discard(key)
            unlisted += reason is None
            print(f"  {number}: {key[1]}\n      {fault}: {reason or 'NOT LISTED'}")
    for function in sorted(cannot_run()):
        print(f"not judged, this CPU cannot run it: {function}")
    for file, line in sorted(unused):
        print(f"listed, but covered or gone: {file}: {line}")
    print(f"{unlisted} lines not covered and not listed, {len(unused)} listed in vain")
    return 1 if unlisted or unused else 0


if __name__ == "__main__":
    sys.exit(main())

"""How things are measured: in rounds that take turns, by the clock or by Callgrind's counts."""

from __future__ import annotations

import gc
import os
import re
import shlex
import shutil
import subprocess
from collections.abc import Callable, Iterable
from pathlib import Path
from statistics import median
from time import process_time

from tinyllm_kv.pytest_plugin import clean_environment

ROOT = Path(__file__).resolve().parents[2]
POOL_UNITS = [*sorted((ROOT / "csrc/runtime").glob("*.c")), *sorted((ROOT / "csrc/ds").glob("*.c"))]

#: Does its work once and returns the seconds of one piece of it: of the processor, without
#: the time in which others had it.
Contestant = Callable[[], float]


def timed(work: Callable[[], object], times: int = 1) -> Contestant:
    """Return a contestant that does ``work`` ``times`` times a round."""

    def contestant() -> float:
        start = process_time()
        for _ in range(times):
            work()
        return (process_time() - start) / times

    return contestant


class Contest:
    """The seconds of several contestants, who took turns: a round is all of them, one after another.

    What else the machine does meanwhile meets all of them alike.
    """

    def __init__(self, rounds: int, **contestants: Contestant) -> None:
        self._seconds: dict[str, list[float]] = {name: [] for name in contestants}
        for contestant in contestants.values():
            contestant()  # memory that is touched for the first time, code that is read
        gc.collect()
        gc.disable()
        try:
            for _ in range(rounds):
                for name, contestant in contestants.items():
                    self._seconds[name].append(contestant())
        finally:
            gc.enable()

    def seconds(self, name: str) -> float:
        """Return the median of a contestant's rounds."""
        return median(self._seconds[name])

    def times_as_long(self, name: str, other: str) -> float:
        """Return how many times as long ``name`` takes as ``other``: the median over the rounds."""
        return median(a / b for a, b in zip(self._seconds[name], self._seconds[other], strict=True))

    def per(self, count: int = 1) -> str:
        """Show each contestant's median for one of ``count`` pieces of its work."""
        return ", ".join(f"{name} {duration(self.seconds(name) / count)}" for name in self._seconds)


def duration(seconds: float) -> str:
    """Show seconds in the unit that suits them, to three digits."""
    for unit, size in (("s", 1.0), ("ms", 1e-3), ("us", 1e-6)):
        if seconds >= size:
            return f"{seconds / size:.3g} {unit}"
    return f"{seconds * 1e9:.3g} ns"


# ---- programs in C -----------------------------------------------------------


def compiler() -> list[str]:
    return shlex.split(os.environ.get("CC", "cc"))


def compile_c(source: str, folder: Path, units: Iterable[Path] = ()) -> Path:
    """Compile tests/bench/``source`` with ``units`` into ``folder``. Return the program."""
    program = folder / Path(source).stem
    includes = [f"-I{ROOT / name}" for name in ("include", "csrc/runtime")]
    files = [str(ROOT / "tests/bench" / source), *map(str, units)]
    run([*compiler(), "-O2", "-std=c11", *includes, *files, "-o", str(program)])
    return program


def run(command: list[str], stdin: Path | None = None, env: dict[str, str] | None = None) -> str:
    """Run a command to its end, in the clean environment unless told otherwise. Return what it printed."""
    with open(stdin or os.devnull, "rb") as file:
        done = subprocess.run(command, stdin=file, capture_output=True, text=True, env=env or clean_environment())
    if done.returncode != 0:
        raise RuntimeError(f"{shlex.join(command)}: exit status {done.returncode}\n{done.stderr}")
    return done.stdout


def instructions(command: list[str], folder: Path) -> dict[str, int]:
    """Run a program under Callgrind. Return the instructions of each of its dumps, by the dump's name."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    options = ["--instr-atstart=no", "--collect-atstart=no", f"--callgrind-out-file={folder / 'out'}"]
    run(["valgrind", "-q", "--tool=callgrind", *options, *command])
    counts = {}
    for file in folder.iterdir():
        text = file.read_text()
        name = re.search(r"^desc: Trigger: Client Request: (\w+)$", text, re.MULTILINE)
        total = re.search(r"^totals: (\d+)$", text, re.MULTILINE)
        if name and total:
            counts[name[1]] = int(total[1])
    return counts

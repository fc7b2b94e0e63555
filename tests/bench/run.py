"""Measure the package against its peers: ``python tests/bench/run.py [--trace FILE] [--json] [--only NAME ...]``.

Every figure is a ratio against something measured in the same run, in rounds that take
turns, or a bound of its own; README.md beside this file says how to read the table. The
exit status is 1 when a row misses what is asked of it; with ``--all`` also when something but a
trace is missing to measure one.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
import textwrap
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
from measure import compiler, duration
from rows import FULL, GROUPS, QUICK, Call, Group, Setting, Target, calls, missing


@dataclass(frozen=True)
class Row:
    """A target and what became of it: a figure with the times behind it, or why there is none."""

    group: str
    target: Target
    measured: float | None
    note: str
    lacks: tuple[str, ...] = ()

    @property
    def verdict(self) -> str:
        if self.measured is None:
            return "not measured"
        held = self.measured <= self.target.bound if self.target.at_most else self.measured >= self.target.bound
        return "ok" if held else "MISSED"

    def cells(self) -> tuple[str, ...]:
        t = self.target
        unit = f" {t.unit}"
        measured = "-" if self.measured is None else f"{self.measured:.3g}{unit}"
        bound = f"{'at most' if t.at_most else 'at least'} {t.bound:g}{unit}"
        return t.what, t.against, bound, measured, self.verdict, self.note

    def as_json(self) -> dict[str, object]:
        return {"group": self.group, **asdict(self.target), "measured": self.measured, "verdict": self.verdict,
                "note": self.note}  # fmt: skip


HEADINGS = ("what", "against, same run", "asked for", "measured", "verdict", "medians")


def rows_of(group: Group, setting: Setting) -> Iterator[Row]:
    """Measure a group, or say what it lacks."""
    lacks = {need: why for need in group.needs if (why := missing(need, setting))}
    if lacks:
        yield from (Row(group.name, target, None, "; ".join(lacks.values()), tuple(lacks)) for target in group.targets)
        return
    measured = {what: (figure, note) for what, figure, note in group.measure(setting)}
    if measured.keys() != {target.what for target in group.targets}:
        raise RuntimeError(f"{group.name}: {sorted(measured)} measured")
    for target in group.targets:
        yield Row(group.name, target, *measured[target.what])


def machine() -> dict[str, str]:
    """Describe where this runs."""
    cpu = platform.processor() or platform.machine()
    if os.path.exists("/proc/cpuinfo"):
        with open("/proc/cpuinfo") as file:
            cpu = next((line.split(": ", 1)[1].strip() for line in file if line.startswith("model name")), cpu)
    try:
        version = subprocess.run([*compiler(), "--version"], capture_output=True, text=True).stdout.splitlines()[0]
    except (OSError, IndexError):
        version = "none"
    return {
        "cpu": f"{cpu}, {os.cpu_count()} cores",
        "compiler": version,
        "python": platform.python_version(),
        "numpy": np.__version__,
    }


def table(headings: tuple[str, ...], rows: list[tuple[str, ...]]) -> str:
    """Align cells in columns."""
    widths = [max(map(len, column)) for column in zip(headings, *rows, strict=True)]
    lines = [headings, tuple("-" * width for width in widths), *rows]
    return "\n".join(
        "  ".join(f"{cell:<{width}}" for cell, width in zip(line, widths, strict=True)).rstrip() for line in lines
    )


def main(argv: list[str] | None = None) -> int:
    names = [group.name for group in GROUPS] + ["calls"]
    parser = argparse.ArgumentParser(
        description="Measure the package against its peers.", epilog=textwrap.fill(f"NAMEs: {', '.join(names)}")
    )
    parser.add_argument("--trace", type=Path, metavar="FILE", help="requests to replay, as for tinyllm-kv replay")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--only", nargs="+", choices=names, default=names, metavar="NAME", help="these groups of rows")
    parser.add_argument("--quick", action="store_true", help="tiny inputs, to see that it all runs; no verdict counts")
    parser.add_argument("--all", action="store_true", help="fail where a row is not measured, unless all it lacks is a trace")
    args = parser.parse_args(argv)

    scale = QUICK if args.quick else FULL
    rows: list[Row] = []
    each: list[Call] = []
    with tempfile.TemporaryDirectory() as folder:
        setting = Setting(scale, Path(folder), args.trace)
        for group in GROUPS:
            if group.name in args.only:
                print(f"measuring {group.name} ...", file=sys.stderr, flush=True)
                rows += rows_of(group, setting)
        if "calls" in args.only:
            each = calls(scale)

    if args.json:
        print(json.dumps({"machine": machine(), "quick": args.quick, "rows": [row.as_json() for row in rows],
                          "calls": [asdict(call) for call in each]}, indent=1))  # fmt: skip
    else:
        print(*(f"{name:<9} {value}" for name, value in machine().items()), sep="\n")
        if rows:
            print(f"\n{table(HEADINGS, [row.cells() for row in rows])}")
        if each:
            cells = [(call.what, duration(call.seconds), f"{call.times_empty:.2f} x") for call in each]
            print(f"\n{table(('one call from Python', 'takes', 'an empty one'), cells)}")
    counts = {verdict: sum(row.verdict == verdict for row in rows) for verdict in ("ok", "MISSED", "not measured")}
    print(", ".join(f"{count} {verdict}" for verdict, count in counts.items()), file=sys.stderr)
    if args.all and any(row.lacks not in ((), ("trace",)) for row in rows):
        return 1
    return 1 if counts["MISSED"] and not args.quick else 0


if __name__ == "__main__":
    sys.exit(main())

"""tinyllm-kv demo: it shows the worked example, and notices when one value is another."""

from __future__ import annotations

import copy
import os
import pty
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from parity import transcription

from tinyllm_kv import Pool
from tinyllm_kv.cli import demo, main

SCRIPT = str(Path(sys.executable).with_name("tinyllm-kv"))


def leaves(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yield the path to every single value; an empty list is one."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    if isinstance(value, (dict, list)) and value:
        for key, item in items:
            yield from leaves(item, (*path, key))
    else:
        yield path


def altered(path: tuple[Any, ...]) -> dict[str, Any]:
    """Return the worked example with one value changed."""
    worked = copy.deepcopy(demo.WORKED)
    place: Any = worked
    for key in path[:-1]:
        place = place[key]
    old = place[path[-1]]
    place[path[-1]] = f"{old}x" if isinstance(old, str) else ["nobody"] if old == [] else old + 1
    return worked


def test_demo_agrees_with_the_worked_example() -> None:
    """The console script plays the example to its end and exits with 0; lines fit a terminal, verdicts a column."""
    shown = subprocess.run([SCRIPT, "demo"], capture_output=True, text=True)
    assert (shown.returncode, shown.stderr) == (0, "")
    lines = shown.stdout.splitlines()
    assert lines[-1].startswith("All ") and "DIFFERS" not in shown.stdout
    assert max(map(len, lines)) <= 80 and shown.stdout.isascii()
    assert len({len(line) for line in lines if line.endswith(" ok")}) == 1


def test_demo_shows_the_worked_values() -> None:
    """Hashes, what goes into them, the envelope's bytes and the counts are on the page."""
    shown = subprocess.run([SCRIPT, "demo"], capture_output=True, text=True).stdout
    worked = next(case for case in transcription.cases() if case["name"] == "worked_envelope")
    envelope = transcription.envelope(worked)
    dump = [line[8:31] for line in shown.splitlines() if line[:6].strip().isdigit() and line[6:8] == "  "]
    assert bytes.fromhex(" ".join(dump)) == envelope
    for value in (
        "00 00 00 00 00 00 00 00  01 00 00 00 02 00 00 00",
        "66 93 7b 02 c1 b0 1a a9  03 00 00 00 04 00 00 00",
        "0xA91AB0C1027B9366",
        "0x03DF829571605C60",
        "0x4F0B541C",
        "free 1   used 2   cached 0",
        "free 0   used 3   cached 0",
        "free 2   used 0   cached 1",
        "| parent + child ",
    ):
        assert value in shown


@pytest.mark.parametrize("path", list(leaves(demo.WORKED)), ids=lambda path: "-".join(map(str, path)))
def test_a_single_difference_is_noticed(
    path: tuple[Any, ...], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whichever expected value is changed, the demo shows the difference and exits with 1."""
    monkeypatch.setattr(demo, "WORKED", altered(path))
    assert main(["demo"]) == 1
    out = capsys.readouterr().out
    assert "DIFFERS" in out and " differ from the worked example" in out.splitlines()[-1]


def test_a_wrong_pool_is_noticed(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """A pool that finds nothing, and one that lets nothing go, fail the demo."""
    for call in ("lookup", "unref"):
        with monkeypatch.context() as broken:
            broken.setattr(Pool, call, lambda *_: None)
            assert main(["demo"]) == 1
        assert "DIFFERS" in capsys.readouterr().out


def test_the_same_on_a_terminal() -> None:
    """On a terminal the page is the same text."""
    ours, theirs = pty.openpty()
    with os.fdopen(theirs, "wb") as terminal:
        process = subprocess.Popen([SCRIPT, "demo"], stdout=terminal)
    shown = b""
    try:
        while part := os.read(ours, 4096):
            shown += part
    except OSError:  # how Linux tells that the other end is closed
        pass
    os.close(ours)
    assert process.wait() == 0
    plain = subprocess.run([SCRIPT, "demo"], capture_output=True).stdout
    assert shown.replace(b"\r\n", b"\n") == plain

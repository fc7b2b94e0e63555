"""tinyllm-kv itself: what it shows without a command, and how it ends when something is wrong."""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from pathlib import Path

import pytest

import tinyllm_kv
from tinyllm_kv import cli
from tinyllm_kv.cli import demo, main

SCRIPT = str(Path(sys.executable).with_name("tinyllm-kv"))


def script(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run the installed console script."""
    return subprocess.run([SCRIPT, *arguments], capture_output=True, text=True)


def test_bare_shows_what_there_is() -> None:
    """Without arguments every command stands in a line with its purpose, with examples, status 0."""
    shown = script()
    assert (shown.returncode, shown.stderr) == (0, "")
    lines = shown.stdout.splitlines()
    for command in ("demo", "replay", "inspect"):
        assert [line for line in lines if line.split()[:1] == [command] and len(line.split()) > 3]
    assert "  tinyllm-kv demo" in lines


def test_module_is_the_same(tmp_path: Path) -> None:
    """python -m tinyllm_kv shows what the console script shows."""
    command = [sys.executable, "-m", "tinyllm_kv"]
    module = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path)
    assert (module.returncode, module.stdout) == (0, script().stdout)


def test_version() -> None:
    """--version prints the package's version."""
    assert script("--version").stdout == f"tinyllm-kv {tinyllm_kv.__version__}\n"


def test_unknown_command_is_a_usage_error() -> None:
    """Arguments that do not parse exit with 2 and say so on standard error."""
    shown = script("dance")
    assert (shown.returncode, shown.stdout) == (2, "")
    assert "invalid choice: 'dance'" in shown.stderr


def test_system_error_is_one_line() -> None:
    """A file that is not there gives one line on standard error and exit status 1."""
    shown = script("replay", "no/such/file", "--blocks", "4")
    assert (shown.returncode, shown.stdout) == (1, "")
    assert shown.stderr == "tinyllm-kv replay: no/such/file: No such file or directory\n"


def test_pool_error_is_one_line(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """A refusal of the pool gives its text in one line and exit status 1."""

    def fail(_args: argparse.Namespace) -> int:
        raise tinyllm_kv.OutOfBlocks("tl_kv_alloc: 3 asked\nfor, 2 there")

    monkeypatch.setattr(demo, "run", fail)
    assert main(["demo"]) == 1
    assert capsys.readouterr().err == "tinyllm-kv demo: tl_kv_alloc: 3 asked for, 2 there\n"


def test_programming_errors_are_not_hidden(monkeypatch: pytest.MonkeyPatch) -> None:
    """An exception that is nobody's message keeps its traceback."""
    monkeypatch.setattr(demo, "run", lambda _args: 1 // 0)
    with pytest.raises(ZeroDivisionError):
        main(["demo"])


def test_ctrl_c_is_quiet(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C ends with status 130 and says nothing."""

    def interrupted(_args: argparse.Namespace) -> int:
        raise KeyboardInterrupt

    monkeypatch.setattr(demo, "run", interrupted)
    assert main(["demo"]) == 130
    assert capsys.readouterr() == ("", "")


@pytest.mark.parametrize(("argument", "statuses"), [("demo", {1}), ("--help", {0, 1})])
@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_broken_pipe_is_quiet(argument: str, statuses: set[int], unbuffered: str) -> None:
    """When the reader has gone nothing is said, neither by a command nor by the interpreter's end."""
    reader, writer = os.pipe()
    os.close(reader)
    env = os.environ | {"PYTHONUNBUFFERED": unbuffered}
    shown = subprocess.run([SCRIPT, argument], stdout=writer, stderr=subprocess.PIPE, env=env)
    os.close(writer)
    assert shown.stderr == b""
    assert shown.returncode in statuses  # some versions of argparse pass over what they could not print


@pytest.mark.parametrize("arguments", ["demo", "replay {trace} --blocks 10", "inspect {envelope}"])
def test_standard_error_may_be_closed(arguments: str, tmp_path: Path) -> None:
    """With 2>&- a command prints what it always does, and what it refuses goes nowhere, not among the results."""
    trace, envelope = tmp_path / "trace", tmp_path / "envelope"
    trace.write_text('{"timestamp": 0, "input_length": 1, "output_length": 1, "hash_ids": []}\n')
    with tinyllm_kv.Pool(1, n_layers=1, n_kv_heads=1, head_dim=1) as pool:
        envelope.write_bytes(pool.export([]))
    command = f"{SCRIPT} {arguments}".format(trace=trace, envelope=envelope)

    def output(tail: str) -> tuple[int, bytes]:
        done = subprocess.run(f"{command} {tail}", shell=True, stdout=subprocess.PIPE)
        return done.returncode, done.stdout

    assert output("2>&-") == output("2>/dev/null") and output("")[1]
    assert output("--no-such 2>&-") == (2, b"")
    trace.unlink()
    envelope.unlink()
    if arguments != "demo":
        assert output("2>&-") == (1, b"")


def test_full_disk_is_one_line() -> None:
    """Output that cannot be written gives one line and status 1."""
    with open("/dev/full", "w") as full:
        shown = subprocess.run([SCRIPT, "demo"], stdout=full, stderr=subprocess.PIPE, text=True)
    assert (shown.returncode, shown.stderr) == (1, "tinyllm-kv demo: No space left on device\n")


def test_any_file_name_can_be_shown(tmp_path: Path) -> None:
    """A file name that is no UTF-8 is shown with escapes."""
    path = bytes(tmp_path) + b"/trace\xff.jsonl"
    with open(path, "wb"):
        pass
    shown = subprocess.run([SCRIPT, "replay", path, "--blocks", "2"], capture_output=True)
    assert shown.returncode == 0, shown.stderr
    assert b"trace\\udcff.jsonl" in shown.stdout


def test_every_command_explains_itself(capsys: pytest.CaptureFixture[str]) -> None:
    """Each command has a --help with a description, status 0."""
    for command in ("demo", "replay", "inspect"):
        with pytest.raises(SystemExit) as ended:
            main([command, "--help"])
        assert ended.value.code == 0
        assert len(capsys.readouterr().out.splitlines()) > 5
    assert len(cli.COMMANDS) == 3

"""The console script ``tinyllm-kv``: one module for each command.

A command is a module with ``add_parser(subparsers)``, which sets the default ``run`` to a
function from the parsed arguments to the exit status. What the user has to mend it raises
as :class:`CommandError`, :class:`~tinyllm_kv.KVError` or ``OSError``: one line on standard
error, exit status 1.
"""

from __future__ import annotations

import argparse
import io
import os
import sys

from .._version import __version__
from ..errors import KVError
from . import demo, flags, inspect, replay
from .errors import CommandError

COMMANDS = (demo, replay, inspect)

_EXAMPLES = """\
examples:
  tinyllm-kv demo
  tinyllm-kv replay trace.jsonl --blocks 1000,10000,50000
  cc $(tinyllm-kv --cflags) prog.c $(tinyllm-kv --sources)

tinyllm-kv COMMAND --help says more about a command.
"""


def main(argv: list[str] | None = None) -> int:
    """Run the command that ``argv`` (by default the process's arguments) names.

    Returns:
        the exit status: 0, 1 for what a command refused or found wrong, 130 after Ctrl-C.

    Raises:
        SystemExit: 2 for arguments that do not parse, 0 after ``--help`` and ``--version``.
    """
    if sys.stderr is None:  # the shell's 2>&-
        sys.stderr = open(os.devnull, "w")
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # a file's name may have any bytes
    name = "tinyllm-kv"
    try:
        parser = _parser()
        args = parser.parse_args(argv)
        if args.flags and args.command:
            parser.error("--cflags and --sources go without a command")
        name += f" {args.command}" if args.command else ""
        status: int = args.run(args) if "run" in args else _without_command(parser, args)
        print(end="", flush=True)
        return status
    except BrokenPipeError:  # whoever read has gone
        return 1
    except KeyboardInterrupt:
        return 130
    except (CommandError, KVError, OSError) as error:
        print(f"{name}: {_one_line(error)}", file=sys.stderr)
        return 1
    finally:
        _end_output()


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="tinyllm-kv",
        description="A paged KV-block pool in C, at the command line.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"tinyllm-kv {__version__}")
    flags.add_arguments(parser)
    subparsers = parser.add_subparsers(title="commands", dest="command", metavar="COMMAND")
    for command in COMMANDS:
        command.add_parser(subparsers)
    return parser


def _without_command(parser: argparse.ArgumentParser, args: argparse.Namespace) -> int:
    """Print what ``--cflags`` and ``--sources`` ask for, or else what there is."""
    if args.flags:
        return flags.run(args)
    parser.print_help()
    return 0


def _end_output() -> None:
    """Flush standard output; where it takes nothing more, spare the interpreter's end the same error."""
    try:
        print(end="", flush=True)
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _one_line(error: Exception) -> str:
    if isinstance(error, OSError) and error.strerror:
        where = "" if error.filename is None else f"{os.fsdecode(error.filename)}: "
        return f"{where}{error.strerror}"
    return " ".join(str(error).split())

"""``tinyllm-kv --cflags`` and ``--sources``: what a C compiler needs to build against the package.

Paths are quoted where a shell needs it, as by ``pkg-config``: where one has a blank, let the
shell read the quotes, ``eval "cc $(tinyllm-kv --cflags) ..."``.
"""

from __future__ import annotations

import argparse
import shlex

from ..sources import get_include, get_sources


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Let ``flags`` collect the functions behind the options, in the order given."""
    group = parser.add_argument_group("for compiling C against the installed package")
    for option, function, text in (
        ("--cflags", cflags, "print the compiler flags that find tinyllm.h"),
        ("--sources", get_sources, "print the C files to compile along"),
    ):
        group.add_argument(option, dest="flags", action="append_const", const=function, help=text)


def cflags() -> list[str]:
    """Return the compiler flags that find ``tinyllm.h``."""
    return [f"-I{get_include()}"]


def run(args: argparse.Namespace) -> int:
    """Print what was asked for, in one line."""
    print(shlex.join(word for function in args.flags for word in function()))
    return 0

"""A pytest plugin that compiles C tests under sanitizers and runs them as items.

``pytest --c-test FILE [--c-include DIR] [--c-source FILE]`` runs C tests of anybody's
against this library. Each file is a program of its own: exit status 0 is a pass. All
three options are repeatable; with ``--c-test`` nothing else is collected, and the report
shows what each program printed.

The C code tested is that of the working directory where there is one (a clone), of
the installed package otherwise.

An entry point of the package loads this. Neither a conftest.py nor the project's pytest
configuration could: pytest takes the path in ``--c-test PATH`` for one of its own, until
it knows the option, and reads neither where that path lies outside the project.
"""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import pytest

SANITIZE = (
    "-g",
    "-O1",
    "-fsanitize=address,undefined",
    "-fno-sanitize-recover=all",
    "-fno-omit-frame-pointer",
)
SECONDS = 300


class CFailure(Exception):
    """A C program does not compile, or fails; the text is what to show."""


def clean_environment() -> dict[str, str]:
    """Return the environment for compilers and sanitized programs.

    Without what a sanitized interpreter was started with: a preloaded runtime, or
    options that turn leak detection off.
    """
    kept = {k: v for k, v in os.environ.items() if k != "LD_PRELOAD" and not k.endswith("SAN_OPTIONS")}
    return kept | {
        "ASAN_OPTIONS": "detect_leaks=1:allocator_may_return_null=1",
        "UBSAN_OPTIONS": "print_stacktrace=1",
    }


class CBuild:
    """Compiles C files and links programs, each once, in a folder of its own."""

    def __init__(self, folder: Path, flags: Sequence[str], common: Iterable[Path]) -> None:
        """Take the flags of every call and the sources of every program."""
        self.folder = folder
        self.flags = list(flags)
        self.common = list(common)
        self._made: dict[tuple[Path, str], Path | CFailure] = {}

    def program(self, main: Path) -> Path:
        """Return the program of the source `main` and the common sources.

        Raises:
            CFailure: the compiler or the linker refuses, now or in an earlier call.
        """
        objects = [self._object(source) for source in [main, *self.common]]
        return self._make(main, ".exe", [*map(str, objects), "-lm", "-pthread"])

    def _object(self, source: Path) -> Path:
        return self._make(source, ".o", ["-c", str(source)])

    def _make(self, source: Path, kind: str, arguments: list[str]) -> Path:
        key = source, kind
        if key not in self._made:
            out = self.folder / f"{len(self._made)}-{source.name}{kind}"
            command = [*shlex.split(os.environ.get("CC", "cc")), *self.flags, *arguments, "-o", str(out)]
            status, output, errors = execute(command)
            self._made[key] = out if status == 0 else CFailure(f"{shlex.join(command)}\n{output}{errors}")
        made = self._made[key]
        if isinstance(made, CFailure):
            raise made
        return made


def execute(command: Sequence[str], seconds: float | None = None) -> tuple[int, str, str]:
    """Run a command in the clean environment; return its status, output and errors.

    Raises:
        CFailure: it cannot be started, or takes longer than `seconds`.
    """
    try:
        done = subprocess.run(
            command,
            env=clean_environment(),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="backslashreplace",
            timeout=seconds,
        )
    except OSError as error:
        raise CFailure(f"{command[0]}: {error.strerror}") from error
    except subprocess.TimeoutExpired as error:
        raise CFailure(f"{shlex.join(command)}: still running after {seconds} s") from error
    return done.returncode, done.stdout, done.stderr


class CProgram(pytest.Item):
    """A C program as a pytest item: passes with exit status 0."""

    def __init__(self, *, build: CBuild, source: Path, arguments: Sequence[str] = (), **rest: Any) -> None:
        super().__init__(**rest)
        self.build = build
        self.source = source
        self.arguments = list(arguments)

    def runtest(self) -> None:
        status, output, errors = execute([str(self.build.program(self.source)), *self.arguments], SECONDS)
        sys.stdout.write(output)
        if status == 0:
            sys.stderr.write(errors)
            return
        what = f"signal {-status}" if status < 0 else f"exit status {status}"
        raise CFailure(f"{' '.join([self.source.name, *self.arguments])}: {what}\n{errors}")

    def repr_failure(self, excinfo: pytest.ExceptionInfo[BaseException], style: Any = None) -> Any:
        if isinstance(excinfo.value, CFailure):
            return str(excinfo.value)
        return super().repr_failure(excinfo, style)

    def reportinfo(self) -> tuple[Path, int | None, str]:
        return self.source, None, self.name


def temporary_folder(config: pytest.Config) -> Path:
    """Return a new folder that goes when pytest ends."""
    folder = tempfile.mkdtemp(prefix="tinyllm-kv-c-")
    config.add_cleanup(lambda: shutil.rmtree(folder, ignore_errors=True))
    return Path(folder)


# ---- pytest --c-test -----------------------------------------------------------


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("tinyllm-kv", "C tests against the KV pool")
    for option, what, metavar in [
        ("--c-test", "run this C test, and no other tests", "FILE"),
        ("--c-include", "a folder of headers for --c-test, searched after the library's own", "DIR"),
        ("--c-source", "a C file to compile and link into each --c-test", "FILE"),
    ]:
        group.addoption(option, action="append", default=[], metavar=metavar, help=f"{what} (repeatable)")


@pytest.hookimpl(tryfirst=True)
def pytest_cmdline_main(config: pytest.Config) -> None:
    """Let the report have the output of a --c-test that passes, as with -rP."""
    if config.getoption("--c-test"):
        config.option.reportchars += "P"


@pytest.hookimpl(trylast=True)
def pytest_configure(config: pytest.Config) -> None:
    tests, folders, sources = (config.getoption(o) for o in ("--c-test", "--c-include", "--c-source"))
    if not tests:
        if folders or sources:
            raise pytest.UsageError("--c-include and --c-source need a --c-test")
        return
    here = config.invocation_params.dir
    for option, paths in [("--c-test", tests), ("--c-source", sources)]:
        for path in paths:
            if not (here / path).is_file():
                raise pytest.UsageError(f"{option}: there is no file {path}")
    for path in folders:
        if not (here / path).is_dir():
            raise pytest.UsageError(f"--c-include: there is no folder {path}")
    for name in ("lfplugin", "nfplugin"):  # they would leave a cache beside the file
        config.pluginmanager.unregister(name=name)


def library(here: Path) -> tuple[Path, list[Path]]:
    """Return the include folder and the C sources under test."""
    if (here / "csrc/runtime/kv_pool.c").is_file():
        return here / "include", sorted([*here.glob("csrc/runtime/*.c"), *here.glob("csrc/ds/*.c")])
    import tinyllm_kv

    return Path(tinyllm_kv.get_include()), [Path(source) for source in tinyllm_kv.get_sources()]


@pytest.hookimpl(tryfirst=True)
def pytest_collection(session: pytest.Session) -> bool | None:
    """Collect the files of --c-test instead of everything else."""
    config = session.config
    tests, folders, sources = (config.getoption(o) for o in ("--c-test", "--c-include", "--c-source"))
    if not tests:
        return None
    here = config.invocation_params.dir
    include, units = library(here)
    flags = ["-std=gnu11", *SANITIZE, "-DSS_COUNTING_ALLOC=1"]
    flags += [f"-I{folder}" for folder in [include, *(here / folder for folder in folders)]]
    build = CBuild(temporary_folder(config), flags, [*(here / source for source in sources), *units])

    for test in tests:
        file = here / test
        name = f"--c-test {test}"
        item = CProgram.from_parent(session, name=name, nodeid=test, path=file, build=build, source=file)
        config.hook.pytest_itemcollected(item=item)
        session.items.append(item)
    report = pytest.CollectReport(session.nodeid, "passed", None, [*session.items])
    config.hook.pytest_collectreport(report=report)
    config.hook.pytest_collection_modifyitems(session=session, config=config, items=session.items)
    config.hook.pytest_collection_finish(session=session)
    session.testscollected = len(session.items)
    return True

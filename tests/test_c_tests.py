"""How pytest runs C: the cases of tests/c/, and other people's files by --c-test."""

from __future__ import annotations

import os
import re
import subprocess
import sysconfig
from pathlib import Path

import pytest
from c_cases import ROOT, c_build, case_names
from tinyllm_kv.pytest_plugin import execute

C_FILES = sorted((ROOT / "tests/c").glob("test_*.c"))

PASSES = """
#include "tinyllm.h"
#include <stdio.h>
int main(void)
{
    tl_kv_pool *p;
    tl_kv_cfg cfg = {4, 2, 1, 1, 2, TL_F16, TL_KV_FORMAT_V1};
    if (tl_kv_pool_create(&cfg, &p) != TL_OK) return 1;
    printf("a block has %d bytes\\n", (int)tl_kv_block_bytes(p));
    tl_kv_pool_destroy(p);
    return SS_COUNTING_ALLOC - 1;
}
"""
FAILS = """
#include <stdio.h>
int main(void) { printf("on stdout\\n"); fprintf(stderr, "on stderr\\n"); return 3; }
"""
LEAKS = """
#include "tinyllm.h"
int main(void) { return tl_alloc(123, 8) == 0; }
"""
OVERFLOWS = """
#include "tinyllm.h"
int main(void) { volatile char *p = tl_alloc(3, 1); p[3] = 1; tl_free((void *)p); return 0; }
"""
WRAPS = """
#include <limits.h>
int main(int argc, char **argv) { (void)argv; return INT_MAX + argc == 0; }
"""
USES_OTHERS = """
#include "tinyllm.h"
#include "theirs.h"
int main(void) { return theirs(TL_ABI_VERSION) == 42 ? 0 : 1; }
"""


def run_pytest(*arguments: str | Path, **variables: str) -> tuple[int, str]:
    """Run the pytest command with these environment variables; return its status and output."""
    pytest_command = Path(sysconfig.get_path("scripts")) / "pytest"
    environment = {k: v for k, v in os.environ.items() if not k.startswith("PYTEST_")}
    done = subprocess.run(
        [pytest_command, *arguments],
        cwd=ROOT,
        env=environment | {"COLUMNS": "200"} | variables,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    return done.returncode, done.stdout


def write(folder: Path, text: str, name: str = "other.c") -> Path:
    file = folder / name
    file.write_text(text)
    return file


# ---- our own C tests -------------------------------------------------------------


@pytest.mark.parametrize("source", C_FILES, ids=lambda path: path.name)
def test_the_table_is_read_as_it_is_compiled(source: Path, request: pytest.FixtureRequest) -> None:
    """The names that pytest collects from the source are those that the program lists."""
    status, output, _ = execute([str(c_build(request.config).program(source)), "--list"])
    assert status == 0
    assert case_names(source.read_text()) == output.split()


@pytest.mark.parametrize("source", C_FILES, ids=lambda path: path.name)
def test_every_case_is_in_the_table(source: Path) -> None:
    """No CASE is left out of its file's CASES, and none stands there twice."""
    text = source.read_text()
    assert sorted(re.findall(r"^CASE\((\w+)\)", text, re.MULTILINE)) == sorted(case_names(text))


def test_table_may_have_comments_and_lines() -> None:
    """The table is read like the compiler reads it."""
    assert case_names("/* CASES(no) */\nCASES(a, /* b, */ c, // d\n      e)\n") == ["a", "c", "e"]
    assert case_names("int main(void) { return 0; }\n") == []


def test_case_is_chosen_by_name() -> None:
    """-k with a case's name runs that case."""
    status, output = run_pytest("-v", "-p", "no:cacheprovider", "tests/c", "-k", "slot_cuts_at_255_bytes")
    assert status == 0
    assert "test_abi.c::slot_cuts_at_255_bytes PASSED" in output
    assert "1 passed" in output


# ---- the kit: what fails a case --------------------------------------------------

KIT_CASES = {
    "check": ("CHECK(1 + 1 == 3);", "1 + 1 == 3 does not hold"),
    "integers": ("CHECK_EQ(-1, SIZE_MAX);", "is -1, expected "),
    "statuses": (
        "tl_vec v; CHECK_STATUS(tl_vec_init(&v, 0), TL_OK);",
        'tl_vec_init(&v, 0) is TL_EINVAL (1), expected TL_OK; the error slot says "tl_vec_init: elem is 0"',
    ),
    "strings": ('CHECK_STR(tl_last_error(), "x");', 'tl_last_error() is "", expected "x"'),
    "bytes": ('CHECK_BYTES("abc", "abd", 3);', "byte 2 of 3 is 0x63, expected 0x64"),
    "messages": (
        'tl_set_last_error("tl_vec_init: no"); CHECK_ERROR_FROM("tl_vec");',
        'the error slot says "tl_vec_init: no", expected a message of tl_vec',
    ),
    "old_messages": (
        'tl_set_last_error("f: x"); CHECK_ERROR_FROM("f"); CHECK_ERROR_FROM("f");',
        "expected a message of f",
    ),
    "nothing_checked": ("", "it checked nothing"),
    "leak": ("CHECK(tl_alloc(8, 8));", "LeakSanitizer"),
    "overflow": ("char *volatile p = tl_alloc(3, 1); CHECK(p); p[3] = 0;", "heap-buffer-overflow"),
    "double_free": ("void *p = tl_alloc(3, 1); CHECK(p); tl_free(p); tl_free(p);", "double-free"),
    "leaking_round": (
        "KIT_EACH_ALLOC_FAILURE(n) { void *a = tl_alloc(1, 1), *b = tl_alloc(1, 1);"
        " if (b) tl_free(a); tl_free(b); }",
        "with allocation 1 failing, 1 allocations are alive, 0 were before",
    ),
    "no_allocation": ("KIT_EACH_ALLOC_FAILURE(n) { }", "never allocates"),
}


@pytest.fixture(scope="module")
def kit_program(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Path:
    """A C test of which every case but `good` is wrong, each in one way."""
    cases = "".join(f"CASE({name}) {{ {body} }}\n" for name, (body, _) in KIT_CASES.items())
    good = "CASE(good) { CHECK_EQ((uint8_t)3, 3LL); CHECK_EQ(UINT64_MAX, ~0ull); }\n"
    text = f'#include "kit.h"\n{cases}{good}CASES({", ".join(KIT_CASES)}, good)\n'
    return c_build(request.config).program(write(tmp_path_factory.mktemp("kit"), text, "test_kit.c"))


@pytest.mark.parametrize("name", KIT_CASES)
def test_kit_fails_a_wrong_case(name: str, kit_program: Path) -> None:
    """Each check can fail, and says what it saw."""
    status, _, errors = execute([str(kit_program), name])
    assert status != 0
    assert KIT_CASES[name][1] in errors


def test_kit_goes_on_after_a_failure(kit_program: Path) -> None:
    """A failed check ends its case only; the last line counts; a wrong name is status 2."""
    status, output, errors = execute([str(kit_program), "check", "good", "bytes"])
    assert (status, output) == (1, "1 passed, 2 failed\n")
    assert re.search(r"^/.*/test_kit\.c:2: 1 \+ 1 == 3", errors, re.MULTILINE)
    assert execute([str(kit_program), "good"])[:2] == (0, "1 passed, 0 failed\n")
    assert execute([str(kit_program), "goo"])[0] == 2


# ---- other people's --------------------------------------------------------------


def test_foreign_file_passes(tmp_path: Path) -> None:
    """Exit status 0 is a pass, the output is shown, nothing else is run."""
    status, output = run_pytest("--c-test", write(tmp_path, PASSES))
    assert status == 0, output
    assert "1 passed" in output
    assert "a block has 16 bytes" in output
    assert sorted(path.name for path in tmp_path.iterdir()) == ["other.c"]


def test_foreign_file_may_be_named_from_where_one_stands(tmp_path: Path) -> None:
    """Paths are relative to the working directory, in the `=` form too."""
    file = os.path.relpath(write(tmp_path, PASSES), ROOT)
    status, output = run_pytest(f"--c-test={file}", "--c-test", file)
    assert status == 0, output
    assert "collected 2 items" in output
    assert "2 passed" in output


WRONG = {
    "status": (FAILS, ["on stdout", "on stderr", "exit status 3"]),
    "leak": (LEAKS, ["LeakSanitizer", "123 byte(s)"]),
    "overflow": (OVERFLOWS, ["heap-buffer-overflow", "overflow.c:3"]),
    "undefined": (WRAPS, ["signed integer overflow", "undefined.c:3"]),
    "compile": ("int main(void) { return nothing; }", ["nothing", "undeclared"]),
    "link": ("int f(void); int main(void) { return f(); }", ["undefined reference"]),
    "signal": ("#include <stdlib.h>\nint main(void) { abort(); }", ["signal 6"]),
}


@pytest.fixture(scope="module")
def wrong_files(tmp_path_factory: pytest.TempPathFactory) -> tuple[int, dict[str, str]]:
    """pytest's status for one file that passes and the WRONG ones; what it says of each.

    Started from where a sanitized interpreter would be, with leak detection off: that
    must not reach the C programs.
    """
    folder = tmp_path_factory.mktemp("wrong")
    texts = {"right": PASSES, **{name: text for name, (text, _) in WRONG.items()}}
    files = [write(folder, text, f"{name}.c") for name, text in texts.items()]
    arguments = [argument for file in files for argument in ("--c-test", file)]
    status, output = run_pytest(*arguments, ASAN_OPTIONS="detect_leaks=0", LSAN_OPTIONS="exitcode=0")
    assert f"{len(WRONG)} failed, 1 passed" in output
    _, *parts = re.split(r"^_{3,} .*/(\w+)\.c _{3,}$", output.partition(" PASSES ")[0], flags=re.MULTILINE)
    return status, dict(zip(parts[::2], parts[1::2], strict=True))


def test_foreign_files_are_judged_one_by_one(wrong_files: tuple[int, dict[str, str]]) -> None:
    """Each wrong file is one failed item; the right one among them passes."""
    status, reports = wrong_files
    assert status == pytest.ExitCode.TESTS_FAILED
    assert sorted(reports) == sorted(WRONG)


@pytest.mark.parametrize("name", WRONG)
def test_foreign_file_fails(name: str, wrong_files: tuple[int, dict[str, str]]) -> None:
    """The report of a failed file says what was wrong with it."""
    report = wrong_files[1][name]
    for part in WRONG[name][1]:
        assert part in report


def test_foreign_headers_and_sources(tmp_path: Path) -> None:
    """--c-include is searched after our headers, --c-source is linked."""
    folder = tmp_path / "include"
    folder.mkdir()
    write(folder, "int theirs(int x);\n", "theirs.h")
    write(folder, "#error their own tinyllm.h was taken\n", "tinyllm.h")
    source = write(tmp_path, '#include "theirs.h"\nint theirs(int x) { return x + 41; }\n', "theirs.c")
    test = write(tmp_path, USES_OTHERS)
    status, output = run_pytest("--c-test", test, "--c-include", folder, "--c-source", source)
    assert status == 0, output
    assert "1 passed" in output


def test_foreign_file_of_the_same_name(tmp_path: Path) -> None:
    """Files of one name in two folders are two items with results of their own."""
    for name, text in [("a", PASSES), ("b", FAILS)]:
        (tmp_path / name).mkdir()
        write(tmp_path / name, text)
    status, output = run_pytest("--c-test", tmp_path / "a/other.c", "--c-test", tmp_path / "b/other.c")
    assert status == 1
    assert "1 failed, 1 passed" in output


def test_foreign_files_that_differ_in_suffix(tmp_path: Path) -> None:
    """Files that differ in their suffix alone are programs of their own."""
    passes, fails = tmp_path / "other.c", tmp_path / "other.i"
    passes.write_text(PASSES)
    fails.write_text("int main(void) { return 3; }\n")
    status, output = run_pytest("--c-test", passes, "--c-test", fails)
    assert status == 1
    assert "1 failed, 1 passed" in output
    assert "other.i: exit status 3" in output


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["--c-test", "nowhere.c"], "--c-test: there is no file nowhere.c"),
        (["--c-test", "{file}", "--c-source", "nowhere.c"], "--c-source: there is no file nowhere.c"),
        (["--c-test", "{file}", "--c-include", "nowhere"], "--c-include: there is no folder nowhere"),
        (["--c-include", "{file}"], "--c-include and --c-source need a --c-test"),
    ],
)
def test_wrong_options_are_usage_errors(arguments: list[str], complaint: str, tmp_path: Path) -> None:
    """A path that is not there ends pytest with a usage error that names it."""
    file = str(write(tmp_path, PASSES))
    status, output = run_pytest(*(argument.format(file=file) for argument in arguments))
    assert status == pytest.ExitCode.USAGE_ERROR
    assert complaint in output

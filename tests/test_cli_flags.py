"""tinyllm-kv --cflags and --sources: enough to compile C against the installed package."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from tinyllm_kv import get_include, get_sources
from tinyllm_kv.cli import flags, main

SCRIPT = shlex.quote(str(Path(sys.executable).with_name("tinyllm-kv")))
CC = os.environ.get("CC", "cc")

PROGRAM = """\
#include <stdio.h>
#include "tinyllm.h"

int main(void)
{
    const uint32_t tokens[] = {1, 2};
    const tl_kv_cfg cfg = {3, 2, 1, 1, 2, TL_F16, TL_KV_FORMAT_V1};
    tl_kv_pool *pool;
    uint32_t ids[2];
    if (tl_kv_pool_create(&cfg, &pool) || tl_kv_alloc(pool, 2, ids))
        return 1;
    printf("%u %u %llX\\n", ids[0], ids[1], (unsigned long long)tl_kv_block_hash(0, tokens, 2));
    tl_kv_pool_destroy(pool);
    return 0;
}
"""


def shell(command: str, cwd: Path) -> str:
    """Run a shell command in a folder and return what it prints."""
    done = subprocess.run(["sh", "-ec", command], cwd=cwd, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_program_compiles_and_runs(tmp_path: Path) -> None:
    """A C program outside the tree compiles with the flags and the sources, and runs."""
    (tmp_path / "prog.c").write_text(PROGRAM)
    compile = f"{CC} $({SCRIPT} --cflags) prog.c $({SCRIPT} --sources) -o prog"
    assert shell(f"{compile} && ./prog", tmp_path) == "0 1 A91AB0C1027B9366\n"


def test_one_line_each(capsys: pytest.CaptureFixture[str]) -> None:
    """Each option prints one line; both together one, in the order given."""
    cflags, sources = f"-I{get_include()}", " ".join(get_sources())
    for options, line in (
        (["--cflags"], cflags),
        (["--sources"], sources),
        (["--sources", "--cflags"], f"{sources} {cflags}"),
    ):
        assert main(options) == 0
        assert capsys.readouterr().out == f"{line}\n"


def test_blanks_are_quoted(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """A path that a shell would split is quoted."""
    monkeypatch.setattr(flags, "get_include", lambda: "/a b/include")
    assert main(["--cflags"]) == 0
    assert shlex.split(capsys.readouterr().out) == ["-I/a b/include"]


def test_not_with_a_command(capsys: pytest.CaptureFixture[str]) -> None:
    """The options beside a command are a usage error, not ignored."""
    with pytest.raises(SystemExit) as ended:
        main(["--cflags", "demo"])
    assert ended.value.code == 2
    assert "--cflags and --sources go without a command" in capsys.readouterr().err

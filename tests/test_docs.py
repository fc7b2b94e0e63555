"""The pages say what is so: their examples run, their links lead somewhere, no public name is missing."""

from __future__ import annotations

import dataclasses
import doctest
import re
import subprocess
import sys
from pathlib import Path

import pytest
from tinyllm_kv.pytest_plugin import CBuild, execute

import tinyllm_kv
from c_cases import C_FLAGS

ROOT = Path(__file__).resolve().parent.parent
PAGES = {page: (ROOT / page).read_text() for page in (
    "README.md", "include/README.md", "tinyllm_kv/README.md", "fixtures/README.md", "tests/README.md",
    "tests/bench/README.md",
)}  # fmt: skip
SESSIONS = [page for page, text in PAGES.items() if ">>> " in text]


def public_names() -> list[str]:
    """Return what a user may name: the package's names and the members of its classes."""
    names = list(tinyllm_kv.__all__)
    for cls in (tinyllm_kv.Pool, tinyllm_kv.PagedKVCache, tinyllm_kv.Envelope):
        names += [name for name in vars(cls) if not name.startswith("_")]
    names += [field.name for field in dataclasses.fields(tinyllm_kv.Envelope)]
    names += [*tinyllm_kv.Config._fields, *tinyllm_kv.Stats._fields]
    for made in (
        tinyllm_kv.Pool(1, 1, n_layers=1, n_kv_heads=1, head_dim=1),
        tinyllm_kv.PagedKVCache(1, 1, 1, 1, 1),
        tinyllm_kv.EnvelopeError(""),
    ):
        names += [name for name in vars(made) if not name.startswith("_")]
    return sorted({*names, *(name for name in vars(tinyllm_kv.KVError) if not name.startswith("_"))})


def missing_names(text: str) -> list[str]:
    """Return the public names that do not stand in a page's code."""
    code = " ".join(re.findall(r"^```python\n.*?^```|`[^`\n]+`", text, flags=re.DOTALL | re.MULTILINE))
    return [name for name in public_names() if not re.search(rf"(?<!\w){name}(?!\w)", code)]


def dead_links(page: str, text: str) -> list[str]:
    """Return the relative links of a page that lead to no file or folder."""
    links = re.findall(r"\]\(([^)\s]+)\)", text)
    relative = [link.partition("#")[0] for link in links if not re.match(r"[a-z]+:|#", link)]
    return [link for link in relative if not (ROOT / page).parent.joinpath(link).exists()]


@pytest.mark.parametrize("page", SESSIONS)
def test_examples_run(page: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A page's examples, one session from top to bottom, print what the page says."""
    monkeypatch.chdir(ROOT)
    test = doctest.DocTestParser().get_doctest(PAGES[page], {}, page, page, 0)
    report: list[str] = []
    result = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS).run(test, out=report.append)
    assert result.failed == 0, "".join(report)
    assert result.attempted == len(re.findall(r"^ *>>> ", PAGES[page], flags=re.MULTILINE))


def test_these_pages_have_sessions() -> None:
    """The test above runs over these pages at least; the scripts of README.md are run by test_readme.py."""
    assert {"tinyllm_kv/README.md", "fixtures/README.md"} <= {*SESSIONS}


def test_c_program_prints_what_the_page_says(tmp_path: Path) -> None:
    """The program of the C page compiles without a warning, is clean under sanitizers and prints that text."""
    page = PAGES["include/README.md"]
    (program,) = re.findall(r"^```c\n(.*?)^```", page, flags=re.DOTALL | re.MULTILINE)
    (printed,) = re.findall(r"^```text\n(.*?)^```", page, flags=re.DOTALL | re.MULTILINE)
    source = tmp_path / "program.c"
    source.write_text(program)
    units = [*ROOT.glob("csrc/runtime/*.c"), *ROOT.glob("csrc/ds/*.c")]
    assert execute([str(CBuild(tmp_path, C_FLAGS, units).program(source))]) == (0, printed, "")


def test_kv_pool_names_are_those_of_the_page() -> None:
    """The C page lists every name that kv_pool.c and its private headers use of abi.h and ds.h."""

    def names(path: str) -> set[str]:
        code = re.sub(r"/\*.*?\*/|\"[^\"\n]*\"", "", (ROOT / path).read_text(), flags=re.DOTALL)
        return set(re.findall(r"\b(?:tl|TL)_\w+", code))

    units = ("kv_pool.c", "kv_pool_impl.h", "crc32c.h", "fnv1a.h")
    used = set().union(*(names(f"csrc/runtime/{unit}") for unit in units))
    offered = {header: names(f"include/tinyllm/{header}.h") for header in ("abi", "ds")}
    for header, others in (("abi", set()), ("ds", offered["abi"])):
        (row,) = re.findall(rf"^\| `{header}.h` \|.*$", PAGES["include/README.md"], flags=re.MULTILINE)
        listed = set(re.findall(r"`(\w+)`", row)) - {"data", "len", "next", "NULL"}
        assert listed - {"tl_dtype"} == (used & offered[header]) - others  # tl_dtype: a field of tl_kv_cfg


def test_every_public_name_is_on_its_page() -> None:
    """The Python page has every public name, in code."""
    assert len(public_names()) > 80
    assert missing_names(PAGES["tinyllm_kv/README.md"]) == []


@pytest.mark.parametrize("page", PAGES)
def test_links_lead_somewhere(page: str) -> None:
    """Each relative link of a page leads to a file or folder."""
    assert dead_links(page, PAGES[page]) == []


def test_tests_named_are_there() -> None:
    """Each test file that the guarantees name is one."""
    named = re.findall(r"`((?:c/)?test_\w+\.\w+|c/kv_\w+\.\w+)`", PAGES["tests/README.md"])
    assert len(named) > 10
    assert [name for name in named if not (ROOT / "tests" / name).is_file()] == []


def test_the_checks_can_fail() -> None:
    """A missing name and a dead link are found."""
    page = PAGES["tinyllm_kv/README.md"]
    assert missing_names(page.replace("block_table", "")) == ["block_table"]
    assert dead_links("tests/README.md", "[a](bench/README.md#x) [b](../nothing.md)") == ["../nothing.md"]


def test_every_part_is_on_the_page() -> None:
    """The tables of tests/README.md name the parts of .ci/run, all of them and no others."""
    done = subprocess.run(["bash", ROOT / ".ci/run", "--list"], capture_output=True, text=True, check=True)
    parts = re.findall(r"^(\S+)  +\S", done.stdout, flags=re.MULTILINE)
    tables = PAGES["tests/README.md"][PAGES["tests/README.md"].index("| part | what it shows |") :]
    cells = "".join(re.findall(r"^\| (`.*?) \|", tables, flags=re.MULTILINE))
    assert sorted(re.findall(r"`([\w-]+)`", cells)) == sorted(parts)


def test_shared_prompt(tmp_path: Path) -> None:
    """The example of a shared system prompt saves and counts what arithmetic says, and its file arrives whole."""
    script = ROOT / "tests/examples/shared_prompt.py"
    ran = subprocess.run([sys.executable, script], cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert (ran.returncode, ran.stderr) == (0, "")

    n, system, own, size = 20, 1000, 20, 16  # requests, tokens they share, tokens of each, positions of a block
    shared, length = system // size, system + own  # 62 blocks; the 63rd begins with the prompt's last 8 tokens
    blocks = -(-length // size)
    computed = length + (n - 1) * (length - shared * size)
    used = shared + n * (blocks - shared)
    payload = 2 * 2 * 2 * size * 8 * 2  # layers, K and V, heads, positions, numbers, bytes
    full = length // size
    cached = shared + n * (full - shared)
    assert ran.stdout.splitlines() == [
        f"20 requests: {computed} of {n * length} positions computed, {used} blocks used",
        f"4 beams: {used} blocks used",
        f"a step of each: {used + 4} blocks used",
        f"exported: {32 + blocks * (12 + payload)} bytes",
        "inspected: tokens    right",
        f"in another process: {length} positions, equal; the next request reuses {(length - 1) // size * size}",
        f"all freed: {cached} blocks cached, {200 - cached} free",
    ]

"""What compiles against what, and which symbols the objects define."""

from __future__ import annotations

import os
import re
import shlex
import shutil
from pathlib import Path

import pytest
from tinyllm_kv.pytest_plugin import SANITIZE, execute

ROOT = Path(__file__).resolve().parent.parent
INCLUDE = ROOT / "include"
HEADERS = sorted(str(header.relative_to(INCLUDE)) for header in INCLUDE.rglob("*.h"))
UNITS = sorted(str(unit.relative_to(ROOT)) for unit in ROOT.glob("csrc/*/*.c"))
KV_POOL = "csrc/runtime/kv_pool.c"

CC = shlex.split(os.environ.get("CC", "cc"))
CXX = shlex.split(os.environ.get("CXX", "c++"))
C_COMPILERS = {os.path.realpath(path): name for name in (CC[0], "gcc", "clang") if (path := shutil.which(name))}
WARNINGS = ["-pedantic", "-Wall", "-Wextra", "-Werror"]
C11 = ["-std=c11", *WARNINGS]

# The only variables of the library that change: (name, kind as nm has it).
WRITABLE = {
    ("hook", "OBJECT"),  # abi.c: the allocator
    ("last_error", "TLS"),  # abi.c: the error slot, one a thread
    ("pending", "TLS"),  # kv_ext.c: messages not yet read, a few a thread
    ("n_pending", "TLS"),
    ("chosen", "OBJECT"),  # crc32c.h: the CPU path, atomic
}


# What kv_pool.o may use beside the library's own interface.
FROM_OUTSIDE = {
    *("memcpy", "memmove", "memset", "memcmp", "bcmp", "vsnprintf"),
    *("__memcpy_chk", "__memset_chk", "__vsnprintf_chk"),  # the same where a compiler fortifies by itself
    *("__cpu_model", "__cpu_features2", "__cpu_indicator_init", "getauxval"),  # what the CPU has: x86, AArch64
    *("__stack_chk_fail", "__stack_chk_guard", "_GLOBAL_OFFSET_TABLE_"),
}


def run(*command: str | Path) -> str:
    """Run a command; return its output; fail the test with what it says otherwise."""
    status, output, errors = execute([str(part) for part in command])
    assert status == 0, f"{shlex.join(map(str, command))}\n{output}{errors}"
    return output


def symbols(objectfile: Path) -> list[tuple[str, str]]:
    """Return (letter, name) of the symbols that an object file defines, as nm has them."""
    lines = run("nm", "--defined-only", "-f", "posix", objectfile).splitlines()
    return [(letter, name) for name, letter, *_ in map(str.split, lines)]


def compiled(unit: str, folder: Path, *flags: str, include: Path = INCLUDE) -> Path:
    """Compile one unit of the library; return the object file."""
    out = folder / (Path(unit).stem + ".o")
    run(*CC, *C11, "-O2", *flags, f"-I{include}", "-c", ROOT / unit, "-o", out)
    return out


@pytest.fixture(scope="module")
def objects(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The object file of each unit."""
    folder = tmp_path_factory.mktemp("objects")
    return {unit: compiled(unit, folder, f"-I{ROOT / 'csrc/runtime'}") for unit in UNITS}


def declared_functions(header: Path) -> set[str]:
    """Return the names of the functions that a header declares."""
    code = re.sub(r"/\*.*?\*/", " ", header.read_text(), flags=re.DOTALL)
    code = re.sub(r"^\s*#(?:[^\n]*\\\n)*[^\n]*", " ", code, flags=re.MULTILINE)
    return set(re.findall(r"\b(tl_\w+)\s*\([^()]*\)\s*;", code))


def test_the_headers_are_found() -> None:
    """The lists that the tests below run over are the whole library."""
    assert HEADERS == ["tinyllm.h", "tinyllm/abi.h", "tinyllm/ds.h", "tinyllm/kv_pool.h"]
    assert {"csrc/runtime/abi.c", "csrc/ds/vec.c", "csrc/ds/swiss.c", "csrc/ds/lru.c"} < set(UNITS)
    assert KV_POOL in UNITS


@pytest.mark.parametrize("compiler", C_COMPILERS.values())
@pytest.mark.parametrize("header", HEADERS)
def test_header_stands_alone_in_c(header: str, compiler: str, tmp_path: Path) -> None:
    """A C11 file of nothing but one #include, twice, compiles without a warning."""
    source = tmp_path / "alone.c"
    source.write_text(f'#include "{header}"\n#include "{header}"\ntypedef int not_empty;\n')
    run(compiler, *C11, f"-I{INCLUDE}", "-fsyntax-only", source)


@pytest.mark.parametrize("header", HEADERS)
def test_header_stands_alone_in_cpp(header: str, tmp_path: Path) -> None:
    """The same as C++11."""
    source = tmp_path / "alone.cc"
    source.write_text(f'#include "{header}"\n#include "{header}"\n')
    run(*CXX, "-std=c++11", *WARNINGS, f"-I{INCLUDE}", "-fsyntax-only", source)


def test_cpp_links_with_the_c_library(tmp_path: Path, objects: dict[str, Path]) -> None:
    """A C++ program finds the functions under their C names."""
    source, program = tmp_path / "main.cc", tmp_path / "main"
    source.write_text(
        '#include "tinyllm.h"\n'
        "int main() {\n"
        "    tl_kv_pool *p = nullptr; tl_map *m = nullptr; tl_kv_cfg cfg = {2, 2, 1, 1, 2, TL_F16, TL_KV_FORMAT_V1};\n"
        "    if (tl_abi_version() != TL_ABI_VERSION || tl_map_create(1, &m) != TL_OK) return 1;\n"
        "    if (tl_kv_pool_create(&cfg, &p) != TL_OK || tl_kv_block_bytes(p) != 16) return 2;\n"
        "    tl_map_destroy(m); tl_kv_pool_destroy(p); return 0;\n"
        "}\n"
    )
    library = [path for unit, path in objects.items() if not unit.startswith("csrc/ext/")]
    run(*CXX, "-std=c++11", *WARNINGS, f"-I{INCLUDE}", source, *library, "-o", program)
    run(program)


@pytest.mark.parametrize("compiler", C_COMPILERS.values())
@pytest.mark.parametrize("unit", UNITS)
def test_unit_compiles_without_warnings(unit: str, compiler: str, tmp_path: Path) -> None:
    """Every unit passes the strict warnings, optimized and not."""
    for level in ("-O0", "-O2"):
        run(compiler, *C11, level, f"-I{INCLUDE}", f"-I{ROOT / 'csrc/runtime'}",
            "-c", ROOT / unit, "-o", tmp_path / "unit.o")  # fmt: skip


def test_portable_paths_compile_without_warnings(tmp_path: Path) -> None:
    """The hash map's portable group operations pass them too."""
    compiled("csrc/ds/swiss.c", tmp_path, "-DTL_SWISS_PORTABLE")


def test_kv_pool_needs_three_headers_only(tmp_path: Path) -> None:
    """kv_pool.c compiles against a folder with abi.h, ds.h and kv_pool.h, nothing else.

    Of the files in the tree it reads only those that lie beside it in csrc/runtime.
    """
    include = tmp_path / "include"
    (include / "tinyllm").mkdir(parents=True)
    for name in ("abi.h", "ds.h", "kv_pool.h"):
        shutil.copy(INCLUDE / "tinyllm" / name, include / "tinyllm")
    compiled(KV_POOL, tmp_path, include=include)
    rule = run(*CC, "-std=c11", f"-I{include}", "-MM", ROOT / KV_POOL)
    read = {Path(name).resolve() for name in rule.replace("\\\n", " ").split()[1:]}
    assert {path.parent for path in read} == {ROOT / "csrc/runtime", include.resolve() / "tinyllm"}


def test_kv_pool_runs_among_foreign_parts(tmp_path: Path) -> None:
    """kv_pool.c passes the pool's cases over another author's headers, map, list and vector."""
    tests = ROOT / "tests/c"
    kit = [source for source in tests.glob("*.c") if not re.match("test_|swiss_", source.name)]
    program = tmp_path / "foreign"
    run(*CC, *C11, *SANITIZE, f"-I{tests / 'foreign'}", f"-I{tests}", f"-I{ROOT / 'csrc/runtime'}", tests / "test_kv_pool.c",
        *kit, tests / "foreign/foreign.c", ROOT / KV_POOL, "-pthread", "-o", program)  # fmt: skip
    assert "20 passed, 0 failed" in run(program)


def test_kv_pool_defines_its_header_and_nothing_else(objects: dict[str, Path]) -> None:
    """The external symbols of kv_pool.o are the functions that kv_pool.h declares."""
    declared = declared_functions(INCLUDE / "tinyllm/kv_pool.h")
    assert len(declared) == 19
    external = {name for letter, name in symbols(objects[KV_POOL]) if letter.isupper()}
    assert external == declared


@pytest.mark.parametrize("compiler", C_COMPILERS.values())
@pytest.mark.parametrize("flags", [["-O0"], ["-O2"], ["-O2", "-fPIC"], ["-O2", "-fno-pie"]], ids=" ".join)
def test_kv_pool_calls_the_public_interface_only(compiler: str, flags: list[str], tmp_path: Path) -> None:
    """What kv_pool.o leaves open is in abi.h or ds.h, or among a few names of the C library and the compiler."""
    out = tmp_path / "kv_pool.o"
    run(compiler, *C11, *flags, f"-I{INCLUDE}", "-c", ROOT / KV_POOL, "-o", out)
    wanted = {line.split()[0] for line in run("nm", "--undefined-only", "-f", "posix", out).splitlines()}
    public = declared_functions(INCLUDE / "tinyllm/abi.h") | declared_functions(INCLUDE / "tinyllm/ds.h")
    assert {"tl_alloc", "tl_map_create", "vsnprintf"} <= {name.replace("__vsnprintf_chk", "vsnprintf") for name in wanted}
    assert wanted - public <= FROM_OUTSIDE


@pytest.mark.parametrize("header", [h for h in HEADERS if h != "tinyllm.h"])
def test_declared_functions_are_defined(header: str, objects: dict[str, Path]) -> None:
    """No header declares a function that the library lacks."""
    defined = {name for path in objects.values() for _, name in symbols(path)}
    assert declared_functions(INCLUDE / header) <= defined


@pytest.mark.parametrize("unit", UNITS)
def test_external_names_begin_with_tl(unit: str, objects: dict[str, Path]) -> None:
    """Whatever else a program defines, it does not clash with ours."""
    names = [name for letter, name in symbols(objects[unit]) if letter.isupper()]
    assert names
    assert [name for name in names if not name.startswith("tl_")] == []


@pytest.mark.parametrize("unit", UNITS)
def test_no_variable_but_those_allowed(unit: str, objects: dict[str, Path]) -> None:
    """A unit has no writable data but the allocator hook, the slot and the CPU path."""
    # the object's table: name|value|class|type|size|line|section
    table = run("nm", "-f", "sysv", objects[unit])
    rows = [[cell.strip() for cell in line.split("|")] for line in table.splitlines() if line.count("|") == 6]
    writable = {
        (name.partition(".")[0], kind)
        for name, _, letter, kind, _, _, section in rows
        if letter in "bBdDC" and not section.startswith(".data.rel.ro")
    }
    assert writable <= WRITABLE
    assert (("hook", "OBJECT") in writable) == (unit == "csrc/runtime/abi.c")

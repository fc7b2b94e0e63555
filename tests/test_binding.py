"""The compiled extension, its cdef, its stub and the C headers agree; one file of Python touches cffi.

The headers are read here by the C compiler's preprocessor, not by the reader that the build uses.
"""

from __future__ import annotations

import ast
import re
import runpy
import subprocess
from pathlib import Path
from typing import Any

import pytest

import tinyllm_kv
from tinyllm_kv._kv import ffi, lib

PACKAGE = Path(tinyllm_kv.__file__).parent
ROOT = Path(__file__).resolve().parents[1]
HEADERS = ["tinyllm/abi.h", "tinyllm/kv_pool.h", "kv_ext.h"]
INCLUDES = [f"-I{ROOT / folder}" for folder in ("include", "csrc/ext")]


def preprocessed(*options: str) -> str:
    """Return what the preprocessor makes of the three headers; with -dM all macros instead."""
    code = "".join(f'#include "{header}"\n' for header in HEADERS)
    command = ["cc", "-std=c11", "-E", *INCLUDES, *options, "-xc", "-"]
    return subprocess.run(command, input=code, capture_output=True, text=True, check=True).stdout


def own_declarations() -> list[str]:
    """Return the declarations that stand in our headers (not in the C library's), with single spaces."""
    text, ours = "", False
    for line in preprocessed().splitlines():
        marker = re.match(r'# \d+ "(.*?)"', line)
        if marker:
            ours = marker[1].endswith(tuple(HEADERS))
        elif ours:
            text += line + "\n"
    # at semicolons outside of braces
    parts = re.findall(r"(?:[^;{}]|\{[^{}]*\})+;", text)
    return [spaced(part) for part in parts if "_Static_assert" not in part]


def spaced(text: str) -> str:
    """Return C text with one space between all tokens."""
    return " ".join(re.findall(r"\w+|\.\.\.|\S", text))


DECLARATIONS = own_declarations()
PROTOTYPES = {
    m[2]: (m[1], m[3]) for d in DECLARATIONS if (m := re.fullmatch(r"((?:\w+ |\* )+?)(\w+) \( (.*) \) ;", d))
}
STRUCTS = {m[2]: m[1] for d in DECLARATIONS if (m := re.fullmatch(r"typedef struct \w+ \{ (.*) \} (\w+) ;", d))}
OPAQUE = {m[1] for d in DECLARATIONS if (m := re.fullmatch(r"typedef struct (\w+) \1 ;", d))}
INTEGERS = {m[2]: m[1] for d in DECLARATIONS if (m := re.fullmatch(r"typedef (\w+) (\w+) ;", d))}
MACROS = {
    m[1]: int(m[2])
    for m in re.finditer(r"^#define (TL_\w+) \(?(?:\(\w+\))?(\d+)u?\)?$", preprocessed("-dM"), re.MULTILINE)
}


def test_every_declaration_is_understood() -> None:
    """Nothing in the headers is left over by this test's own reading of them."""
    assert len(DECLARATIONS) == len(PROTOTYPES) + len(STRUCTS) + len(OPAQUE) + len(INTEGERS)
    assert {"tl_kv_alloc", "tl_crc32c", "tl_kvx_acquire", "tl_set_allocator"} <= PROTOTYPES.keys()
    assert STRUCTS.keys() == {"tl_allocator", "tl_kv_cfg", "tl_kv_stats"}
    assert OPAQUE == {"tl_kv_pool", "tl_kvx", "tl_kvx_group"}
    assert INTEGERS == {"tl_status": "int32_t", "tl_dtype": "int32_t"}
    assert {"TL_EFULL", "TL_F16", "TL_KV_FORMAT_V1", "TL_KVX_CLOSED"} <= MACROS.keys()


def test_the_cdef_is_the_headers() -> None:
    """The declarations that cffi is given are those of the headers, word for word: const and names too."""
    text = re.sub(r"^#define.*$", "", runpy.run_path(str(ROOT / "build_kv.py"))["cdef"](), flags=re.MULTILINE)
    assert [spaced(part) for part in re.findall(r"(?:[^;{}]|\{[^{}]*\})+;", text)] == DECLARATIONS


def test_the_extension_has_all_and_no_more() -> None:
    """The compiled module offers each function and each integer constant of the headers, and nothing else."""
    assert set(dir(lib)) == PROTOTYPES.keys() | MACROS.keys()


@pytest.mark.parametrize("name", PROTOTYPES)
def test_compiled_function_types(name: str) -> None:
    """A compiled function has the type that its header states."""
    result, arguments = PROTOTYPES[name]
    assert ffi.typeof(getattr(lib, name)) is ffi.typeof(f"{result} (*)({arguments})")


@pytest.mark.parametrize("name", MACROS)
def test_compiled_constants(name: str) -> None:
    """A compiled constant has the value that its header states."""
    assert getattr(lib, name) == MACROS[name]


@pytest.mark.parametrize("name", STRUCTS)
def test_compiled_structs(name: str) -> None:
    """A compiled struct has the fields of its header, in order."""
    fields = []
    for part in STRUCTS[name].split(" ;"):
        pointer = re.fullmatch(r"(.*?)\( \* (\w+) \) (\(.*\))", part.strip())
        if pointer:
            fields.append((pointer[2], f"{pointer[1]} (*) {pointer[3]}"))
        elif part.strip():
            kind, names = re.fullmatch(r"(\w+(?: \*)?) ((?:\w+(?: , )?)+)", part.strip()).groups()  # type: ignore[union-attr]
            fields += [(field, kind) for field in names.split(" , ")]
    compiled: Any = ffi.typeof(name)
    assert [(field, detail.type) for field, detail in compiled.fields] == [
        (field, ffi.typeof(kind)) for field, kind in fields
    ]


# ---- Python ------------------------------------------------------------------------------------


def imports(path: Path) -> set[str]:
    """Return the modules a Python file imports, at any place, relative ones with their dots."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            base = "." * node.level + (node.module or "")
            found |= {base} | {f"{base}.{alias.name}".replace("..", ".") for alias in node.names}
    return found


def test_one_file_touches_cffi() -> None:
    """Of the package's files only _binding.py imports cffi or what cffi compiled."""
    touching = {
        path.name
        for path in PACKAGE.rglob("*.py")
        if any(re.search(r"(^|\.)(_?cffi(_backend)?|_kv)($|\.)", name) for name in imports(path))
    }
    assert touching == {"_binding.py"}


def test_the_stub_matches() -> None:
    """Each name that the stub gives the extension is there, each method that it gives ffi too."""
    stub = ast.parse((PACKAGE / "_kv.pyi").read_text())
    names = {node.target.id for node in stub.body if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name)}
    assert names == {"ffi", "lib"}
    (ffi_class,) = (node for node in stub.body if isinstance(node, ast.ClassDef) and node.name == "_FFI")
    methods = {node.name for node in ffi_class.body if isinstance(node, ast.FunctionDef)}
    assert methods
    assert methods <= set(dir(ffi))


def stub_type(c_type: str) -> str:
    """Return what stands in the stub for a C type: for a pointer, an integer, nothing."""
    if "*" in c_type:
        return "Handle" if c_type == "tl_kvx *" else "CData"
    if c_type == "void":
        return "None"
    assert c_type in INTEGERS or ffi.typeof(c_type).kind == "primitive"  # type: ignore[attr-defined]
    return "int"


def stub_signature(name: str) -> str:
    """Return the method that the stub has for a C function, as Python's own printer writes it."""
    result, arguments = PROTOTYPES[name]
    parameters = ["self"]
    for argument in [] if arguments == "void" else arguments.split(" , "):
        argument = re.sub(r"(\w+) \[ \d+ \]$", r"* \1", argument)  # an array as a parameter is a pointer
        c_type, parameter = argument.rsplit(" ", 1)
        parameters.append(f"{parameter}: {stub_type(c_type)}")
    only_by_place = ["/"] if len(parameters) > 1 else []
    return f"def {name}({', '.join(parameters + only_by_place)}) -> {stub_type(result.strip())}: ..."


def test_the_stub_is_the_headers() -> None:
    """The stub has every constant, as an integer, and every function with its parameters, and nothing else."""
    stub = ast.parse((PACKAGE / "_kv.pyi").read_text())
    (lib_class,) = (node for node in stub.body if isinstance(node, ast.ClassDef) and node.name == "_Lib")
    said = [re.sub(r":\s+\.\.\.", ": ...", ast.unparse(node)) for node in lib_class.body[1:]]
    assert sorted(said) == sorted([f"{name}: int" for name in MACROS] + [stub_signature(name) for name in PROTOTYPES])


def test_every_c_name_used_exists() -> None:
    """Those that the package uses are compiled."""
    used = {
        node.attr
        for path in PACKAGE.glob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "lib"
    }
    assert "tl_kvx_alloc" in used
    assert used <= set(dir(lib))


# ---- the wheel's C files -----------------------------------------------------------------------


def test_headers_and_sources_compile(tmp_path: Path) -> None:
    """A C program compiles against get_include() and get_sources() alone, and runs, away from this tree."""
    (tmp_path / "main.c").write_text(
        '#include "tinyllm.h"\n#include <stdio.h>\n'
        "int main(void) { uint32_t t[] = {1, 2};\n"
        'printf("%llX %X\\n", (unsigned long long)tl_kv_block_hash(0, t, 2), tl_crc32c("123456789", 9, 0)); }\n'
    )
    program = tmp_path / "main"
    flags = ["-std=c11", "-pedantic", "-Wall", "-Wextra", "-Werror", f"-I{tinyllm_kv.get_include()}"]
    subprocess.run(
        ["cc", *flags, "main.c", *tinyllm_kv.get_sources(), "-o", program], cwd=tmp_path, check=True
    )
    done = subprocess.run([program], capture_output=True, text=True, check=True)
    assert done.stdout == "A91AB0C1027B9366 E3069283\n"


def test_installed_c_files_are_this_tree() -> None:
    """What is installed is what lies here: else these tests would judge something else."""
    pairs = [(Path(tinyllm_kv.get_include()), ROOT / "include")]
    pairs += [(Path(tinyllm_kv.get_sources()[0]).parents[1], ROOT / "csrc")]
    for installed, here in pairs:
        ours = {path.relative_to(here): path.read_bytes() for path in here.rglob("*.[ch]")}
        assert {path.relative_to(installed): path.read_bytes() for path in installed.rglob("*.[ch]")} == ours

"""Build the extension module ``tinyllm_kv._kv`` with cffi's out-of-line API mode.

``pyproject.toml`` names the C units and :class:`BuildExt`; setuptools does the rest.
What Python can call is read from the C headers themselves, so that the two cannot drift
apart; the C compiler checks it once more when it compiles the generated unit.
"""

from __future__ import annotations

import re
from pathlib import Path

from cffi import FFI

try:
    from setuptools import Extension
    from setuptools.command.build_ext import build_ext
    from setuptools.command.sdist import sdist
except ModuleNotFoundError:  # there only where something is built; the declarations need no setuptools
    build_ext = sdist = object

ROOT = Path(__file__).resolve().parent

#: Headers whose declarations the module offers, in the order of inclusion.
HEADERS = ("include/tinyllm/abi.h", "include/tinyllm/kv_pool.h", "csrc/ext/kv_ext.h")


def declarations(header: str) -> str:
    """Reduce a C header's text to the declarations and integer constants cffi understands."""
    text = re.sub(r"/\*.*?\*/", "", header, flags=re.DOTALL)
    text = re.sub(r"#ifdef __cplusplus.*?#endif", "", text, flags=re.DOTALL)
    lines = []
    for line in text.replace("\\\n", " ").splitlines():
        constant = re.match(r"#define (TL_\w+)\s+\(?[(\d]", line)
        if constant:
            lines.append(f"#define {constant[1]} ...")
        elif line.strip() and not line.startswith("#"):
            lines.append(line)
    return re.sub(r"TL_STATIC_ASSERT\w*\(.*?\);\n", "", "\n".join(lines), flags=re.DOTALL)


def cdef() -> str:
    """Return all declarations, for :meth:`cffi.FFI.cdef`."""
    return "\n".join(declarations((ROOT / header).read_text()) for header in HEADERS)


def builder() -> FFI:
    """Return the FFI builder of ``tinyllm_kv._kv``."""
    ffi = FFI()
    ffi.cdef(cdef())
    ffi.set_source("tinyllm_kv._kv", '#include "tinyllm.h"\n#include "kv_ext.h"\n', py_limited_api=True)
    return ffi


class BuildExt(build_ext):
    """``build_ext`` that lets cffi write its C unit into the build folder first."""

    def build_extension(self, ext: Extension) -> None:
        generated = Path(self.build_temp) / "tinyllm_kv._kv.c"
        generated.parent.mkdir(parents=True, exist_ok=True)
        builder().emit_c_code(str(generated))
        ext.sources = [*ext.sources, str(generated)]
        super().build_extension(ext)


class Sdist(sdist):
    """``sdist`` with all that is needed to run the tests."""

    def make_distribution(self) -> None:
        for folder in ("tests", "fixtures", ".ci"):
            self.filelist.graft(folder)
        for page in ("CHANGELOG.md", "include/README.md", "tinyllm_kv/README.md"):
            self.filelist.append(page)
        self.filelist.global_exclude("*.py[cod]")
        super().make_distribution()

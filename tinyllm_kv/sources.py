"""Where the C headers and units of the installed package lie, for compiling against them."""

from __future__ import annotations

from pathlib import Path

#: The C library, without what only this package needs.
_UNITS = ("runtime/abi.c", "ds/vec.c", "ds/swiss.c", "ds/lru.c", "runtime/kv_pool.c")


def _folder(name: str) -> Path:
    """Return a folder of the wheel, or that of the source tree in an editable install."""
    here = Path(__file__).resolve().parent
    return here / name if (here / name).is_dir() else here.parent / name


def get_include() -> str:
    """Return the folder to put on a C compiler's include path, for ``#include "tinyllm.h"``."""
    return str(_folder("include"))


def get_sources() -> list[str]:
    """Return the C units to compile along with a program that uses ``tinyllm.h``."""
    return [str(_folder("csrc") / unit) for unit in _UNITS]

"""What pytest does with the files below this folder."""

from __future__ import annotations

from pathlib import Path

import pytest
from c_cases import ROOT, CFile


def pytest_collect_file(file_path: Path, parent: pytest.Collector) -> CFile | None:
    if file_path.parent == ROOT / "tests/c" and file_path.match("test_*.c"):
        return CFile.from_parent(parent, path=file_path)
    return None

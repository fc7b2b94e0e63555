"""Run Python code in an interpreter of its own, away from the source folder.

Under ``tests/sanitized.py`` that interpreter is a sanitized one, too.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import textwrap

#: What a sanitized interpreter is started with; set by sanitized.py.
SANITIZED: dict[str, str] = {}


def run(code: str, timeout: float = 120) -> subprocess.CompletedProcess[str]:
    """Run code, which fails the test when it takes longer than ``timeout`` seconds; return what it did."""
    with tempfile.TemporaryDirectory() as folder:
        return subprocess.run(
            [sys.executable, "-X", "dev", "-c", textwrap.dedent(code)],
            cwd=folder,
            env=os.environ | SANITIZED,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=timeout,
        )


def prints(code: str, expected: str, timeout: float = 120) -> None:
    """Check that code prints exactly this to standard output, nothing to the other, and ends with status 0."""
    done = run(code, timeout)
    assert done.stderr == ""
    assert done.stdout == expected
    assert done.returncode == 0

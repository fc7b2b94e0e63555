"""What the README says can be run, and names what there is."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

import tinyllm_kv

ROOT = Path(__file__).resolve().parent.parent
TEXT = (ROOT / "README.md").read_text()
EXAMPLES = re.findall(r"^```python\n(.*?)^```", TEXT, flags=re.DOTALL | re.MULTILINE)


@pytest.mark.parametrize("example", EXAMPLES, ids=range(len(EXAMPLES)))
def test_example_runs(example: str) -> None:
    """Each Python example runs as it stands, its assertions included."""
    assert "assert" in example
    exec(compile(example, "README.md", "exec"), {})


def test_there_are_examples() -> None:
    """The list that the test above runs over is not empty."""
    assert len(EXAMPLES) >= 2


def test_every_part_is_named() -> None:
    """The tables of tests name the parts of .ci/run, all of them and no others."""
    done = subprocess.run(["bash", ROOT / ".ci/run", "--list"], capture_output=True, text=True, check=True)
    parts = set(re.findall(r"^(\S+)  +\S", done.stdout, flags=re.MULTILINE))
    tables = TEXT[TEXT.index("| part | what it shows |") :]
    named = set(re.findall(r"`([\w-]+)`", "".join(re.findall(r"^\| (.*?) \|", tables, flags=re.MULTILINE))))
    assert named == parts


def test_every_public_name_of_a_table_exists() -> None:
    """What the first table calls a member of Pool or of the package is one."""
    table = TEXT[TEXT.index("| you want to | call |") : TEXT.index("## Sequences")]
    names = re.findall(r"`([A-Za-z_]\w*(?:\.\w+)?)`", table)
    assert len(names) > 20
    for name in names:
        holder: object = tinyllm_kv
        for part in name.split("."):
            holder = getattr(holder, part) if hasattr(holder, part) else getattr(tinyllm_kv.Pool, part)

"""What other packages bring: pictures of replays, float types (pip install '.[test-more]')."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tinyllm_kv import PagedKVCache
from tinyllm_kv.cli import main

TRACE = Path(__file__).resolve().parent.parent / "fixtures" / "trace_small.jsonl"


@pytest.fixture
def ml_dtypes() -> Any:
    """The package of small float types."""
    return pytest.importorskip("ml_dtypes")


@pytest.fixture
def matplotlib() -> Any:
    """The package that draws."""
    return pytest.importorskip("matplotlib")


@pytest.mark.usefixtures("matplotlib")
@pytest.mark.parametrize(("kind", "magic"), [("png", b"\x89PNG"), ("svg", b"<?xml")])
def test_plot(kind: str, magic: bytes, tmp_path: Path) -> None:
    """--plot writes a picture of the kind that its name says."""
    picture = tmp_path / f"curve.{kind}"
    assert main(["replay", str(TRACE), "--blocks", "16,64,120", "--plot", str(picture)]) == 0
    assert picture.read_bytes().startswith(magic)


@pytest.mark.usefixtures("matplotlib")
def test_plot_of_an_unknown_kind(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """A picture of no known kind is one line on standard error; the table is printed all the same."""
    assert main(["replay", str(TRACE), "--blocks", "16", "--plot", str(tmp_path / "curve.foo")]) == 1
    out, err = capsys.readouterr()
    assert "hit rate" in out and err.count("\n") == 1 and "curve.foo: Format 'foo' is not supported" in err


@pytest.mark.parametrize(
    ("kind", "values", "stored"),
    [
        ("bfloat16", [1.5, 3e38, -(2.0**-24)], [1.5, np.inf, -(2.0**-24)]),
        ("float8_e4m3fn", [1.75, -448], [1.75, -448]),
        ("float8_e5m2", [1.75, 57344], [1.75, 57344]),
    ],
)
def test_floats_of_other_packages_are_stored_as_float16(
    ml_dtypes: Any, kind: str, values: list[float], stored: list[float]
) -> None:
    """What calls itself a float is rounded to float16, like NumPy's own types."""
    given = np.array(values, getattr(ml_dtypes, kind)).reshape(1, -1, 1)
    cache = PagedKVCache(4, 2, 1, 1, 1)
    cache.add_seq("a")
    cache.append("a", 0, given, given)
    assert cache.gather("a", 0)[0].ravel().tolist() == stored


def test_integers_of_other_packages_are_refused(ml_dtypes: Any) -> None:
    """A 4-bit integer is no float."""
    ones = np.ones((1, 1, 1), ml_dtypes.int4)
    cache = PagedKVCache(4, 2, 1, 1, 1)
    cache.add_seq("a")
    with pytest.raises(TypeError, match="append"):
        cache.append("a", 0, ones, ones)

"""namespace: a parent for the sequences of an adapter or a tenant, which never meet another's."""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tinyllm_kv import block_hash, block_hashes, namespace

# printf 's\x07\0\0\0\0\0\0\0adapter' | b2sum -l 64   and so on: kind, length, data of each part
PUBLISHED = [
    (("adapter",), 0xBE74DC65714421F1),  # s\x07\0\0\0\0\0\0\0adapter
    ((b"adapter",), 0x88795C839F2FF266),  # b\x07\0\0\0\0\0\0\0adapter
    ((0,), 0xEE3031D5CBDCE58A),  # i\x01\0\0\0\0\0\0\0\x00
    ((7,), 0x05A0118093FCE38C),  # i\x01\0\0\0\0\0\0\0\x07
    ((-1,), 0xAA15019CAB5530C8),  # i\x01\0\0\0\0\0\0\0\xff
    ((128,), 0x80F1656C69BAA9F1),  # i\x02\0\0\0\0\0\0\0\x80\x00
    ((-128,), 0xC71EC32338F4EF7A),  # i\x01\0\0\0\0\0\0\0\x80
    (("tenant", 1000, b""), 0xC847336FAD190C96),  # s\x06...tenant i\x02...\xe8\x03 b\0...
    (("\u20ac",), 0x8FD554E347E5BA99),  # s\x03\0\0\0\0\0\0\0\xe2\x82\xac
]


@pytest.mark.parametrize("parts, expected", PUBLISHED)
def test_values(parts: tuple[Any, ...], expected: int) -> None:
    """A namespace is the 64-bit BLAKE2b of its tagged parts, as another program computes it."""
    assert namespace(*parts) == expected


@pytest.mark.parametrize("seed", ["0", "1"])
def test_same_in_every_process(seed: str) -> None:
    """Another process, whatever the seed of its own string hashes, finds the same number."""
    command = [sys.executable, "-c", "import tinyllm_kv; print(tinyllm_kv.namespace('tenant', 1000, b''))"]
    shown = subprocess.run(
        command,
        env=os.environ | {"PYTHONHASHSEED": seed},
        cwd="/",
        capture_output=True,
        text=True,
        check=True,
    )
    assert int(shown.stdout) == 0xC847336FAD190C96


# What a join of the parts, with or without a separator, or a hash of their text alone would mix up.
NEIGHBOURS: list[tuple[Any, ...]] = [
    *[
        ("a", ""),
        ("", "a"),
        ("a",),
        ("", "", "a"),
        ("a", "", ""),
        ("",),
        ("", ""),
        (b"",),
        (b"a",),
        (b"a", ""),
    ],
    *[
        ("ab", "c"),
        ("a", "bc"),
        ("abc",),
        ("a", "b", "c"),
        ("a,b",),
        ("a", "b"),
        ("a/b",),
        ("a\0b",),
        ("a\0", "b"),
    ],
    *[
        (1,),
        ("1",),
        (b"1",),
        (b"\1",),
        ("\1",),
        (-1,),
        (255,),
        (b"\xff",),
        (256,),
        (65535,),
        (1, 0),
        (0, 1),
        (0,),
    ],
    *[
        (2**64,),
        (2**64 - 1,),
        (-(2**64),),
        (2**200,),
        (-(2**200),),
        (12,),
        (1, 2),
        ("12",),
        ("1", "2"),
        (1, "2"),
    ],
    *[("\xe9",), (b"\xc3\xa9",), ("e\u0301",), ("\ud800",), ("s\1\0\0\0\0\0\0\0a",), ("None",), ("True",)],
]


def test_parts_never_run_together() -> None:
    """Parts that differ in kind, number or borders are different namespaces, of different blocks."""
    assert len(set(NEIGHBOURS)) == len(NEIGHBOURS)
    values = [namespace(*parts) for parts in NEIGHBOURS]
    assert len(set(values)) == len(NEIGHBOURS)
    assert len({block_hash(value, [1, 2]) for value in values}) == len(NEIGHBOURS)


@given(
    st.lists(
        st.tuples(st.lists(st.text(max_size=3) | st.binary(max_size=3) | st.integers(), min_size=1)),
        min_size=2,
    )
)
def test_different_parts_differ(drawn: list[tuple[list[Any]]]) -> None:
    """Any lists of parts give as many namespaces as there are lists, none of them 0 or above 64 bits."""
    distinct = {tuple((type(part), part) for part in parts): parts for (parts,) in drawn}
    values = {namespace(*parts) for parts in distinct.values()}
    assert len(values) == len(distinct)
    assert all(0 < value < 2**64 for value in values)


@given(st.integers(-(2**70), 2**70))
def test_integers_of_any_size(number: int) -> None:
    """Neighbouring integers of any size and sign are different namespaces."""
    around = [number + d for d in (-256, -2, -1, 0, 1, 2, 256)]
    assert len({namespace(n) for n in [*around, -number - 1]}) == len({*around, -number - 1})


def test_equal_parts_are_equal() -> None:
    """Bytes of any type, and integers of any type, are what they hold."""
    for same in (bytearray(b"ab"), memoryview(b"ab"), memoryview(b"a.b.")[::2]):
        assert namespace(same) == namespace(b"ab")
    for seven in (np.int8(7), np.uint64(7), np.array(7)):
        assert namespace(seven) == namespace(7)  # type: ignore[arg-type]
    assert namespace(np.str_("ab")) == namespace("ab")


@pytest.mark.parametrize("part", [None, 1.0, True, False, np.True_, ("a",), ["a"], object(), 1j])
def test_other_kinds_are_refused(part: Any) -> None:
    """A part of another kind, a bool among them, is a TypeError that shows it."""
    with pytest.raises(TypeError, match="^namespace: a string, bytes or an integer expected, not "):
        namespace("a", part)


def test_never_0(monkeypatch: pytest.MonkeyPatch) -> None:
    """Parts whose digest is 0 have the namespace 1: 0 is the parent of no namespace."""

    class Zero:
        def __init__(self, digest_size: int) -> None:
            self.size = digest_size

        def update(self, data: bytes) -> None:
            pass

        def digest(self) -> bytes:
            return bytes(self.size)

    monkeypatch.setattr("hashlib.blake2b", Zero)
    assert namespace("a") == 1


def test_no_parts_are_refused() -> None:
    """A namespace of nothing is refused: it would be one by mistake."""
    with pytest.raises(TypeError, match="^namespace: at least one part"):
        namespace()


def test_no_shared_blocks() -> None:
    """Two adapters and the plain sequence have no block in common; no namespace is the plain hash."""
    tokens = list(range(64))
    plain = block_hashes(tokens, 16)
    hashes = [plain, *(block_hashes(tokens, 16, namespace("adapter", i)) for i in range(2))]
    assert len(set(itertools.chain.from_iterable(each.tolist() for each in hashes))) == 12
    assert block_hashes([1, 2], 2).tolist() == [0xA91AB0C1027B9366]

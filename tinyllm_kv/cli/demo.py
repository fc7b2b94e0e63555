"""``tinyllm-kv demo``: the worked example, played through the C pool and checked.

Whatever figure is shown comes out of the pool and stands in :data:`WORKED` too, worked out
without it; a line is marked ``ok`` when all of its figures agree.
"""

from __future__ import annotations

import argparse
import struct
from collections.abc import Callable
from typing import Any

from ..hashing import block_hash, block_hashes, crc32c
from ..pool import Pool

WIDTH = 78
TOKENS = [1, 2, 3, 4, 5]
K = [[1.0, 2.0], [3.0, 4.0]]
V = [[0.5, -1.0], [0.0, 0.25]]

#: The worked example's values. A block of a fork's step: state, refcount, fill, name, holders.
WORKED: dict[str, Any] = {
    "hashes": [
        {"bytes": "00 00 00 00 00 00 00 00  01 00 00 00 02 00 00 00", "hash": "0xA91AB0C1027B9366"},
        {"bytes": "66 93 7b 02 c1 b0 1a a9  03 00 00 00 04 00 00 00", "hash": "0x03DF829571605C60"},
    ],
    "rows": [
        {"at": "K, position 0", "values": [1.0, 2.0], "bytes": "00 3c 00 40"},
        {"at": "K, position 1", "values": [3.0, 4.0], "bytes": "00 42 00 44"},
        {"at": "V, position 0", "values": [0.5, -1.0], "bytes": "00 38 00 bc"},
        {"at": "V, position 1", "values": [0.0, 0.25], "bytes": "00 00 00 34"},
    ],
    "envelope": [
        {"offset": 0, "bytes": "54 4c 4b 56", "field": "magic", "value": "TLKV"},
        {"offset": 4, "bytes": "01 00", "field": "version", "value": "1"},
        {"offset": 6, "bytes": "01 00", "field": "dtype", "value": "1"},
        {"offset": 8, "bytes": "01 00 00 00", "field": "n_blocks", "value": "1"},
        {"offset": 12, "bytes": "02 00 00 00", "field": "block_tokens", "value": "2"},
        {"offset": 16, "bytes": "01 00 00 00", "field": "n_layers", "value": "1"},
        {"offset": 20, "bytes": "01 00 00 00", "field": "n_kv_heads", "value": "1"},
        {"offset": 24, "bytes": "02 00 00 00", "field": "head_dim", "value": "2"},
        {"offset": 28, "bytes": "66 93 7b 02 c1 b0 1a a9", "field": "block_hash", "value": "0xA91AB0C1027B9366"},
        {"offset": 36, "bytes": "02 00 00 00", "field": "n_tokens", "value": "2"},
        {"offset": 40, "bytes": "00 3c 00 40 00 42 00 44", "field": "K", "value": "1.0 2.0 3.0 4.0"},
        {"offset": 48, "bytes": "00 38 00 bc 00 00 00 34", "field": "V", "value": "0.5 -1.0 0.0 0.25"},
        {"offset": 56, "bytes": "1c 54 0b 4f", "field": "crc32c", "value": "0x4F0B541C"},
    ],
    "size": 60,
    "crc": "0x4F0B541C",
    "fork": [
        {
            "counts": {"free": 3, "used": 0, "cached": 0, "evictions": 0},
            "blocks": [["free", 0, 0, "", []], ["free", 0, 0, "", []], ["free", 0, 0, "", []]],
        },
        {
            "counts": {"free": 1, "used": 2, "cached": 0, "evictions": 0},
            "blocks": [["used", 1, 0, "", ["parent"]], ["used", 1, 0, "", ["parent"]], ["free", 0, 0, "", []]],
        },
        {
            "counts": {"free": 1, "used": 2, "cached": 0, "evictions": 0},
            "blocks": [["used", 1, 2, "h0", ["parent"]], ["used", 1, 1, "", ["parent"]], ["free", 0, 0, "", []]],
        },
        {
            "counts": {"free": 1, "used": 2, "cached": 0, "evictions": 0},
            "blocks": [
                ["used", 2, 2, "h0", ["parent", "child"]],
                ["used", 2, 1, "", ["parent", "child"]],
                ["free", 0, 0, "", []],
            ],
        },
        {
            "counts": {"free": 0, "used": 3, "cached": 0, "evictions": 0},
            "blocks": [
                ["used", 2, 2, "h0", ["parent", "child"]],
                ["used", 1, 1, "", ["parent"]],
                ["used", 1, 2, "", ["child"]],
            ],
        },
        {
            "counts": {"free": 1, "used": 2, "cached": 0, "evictions": 0},
            "blocks": [["used", 1, 2, "h0", ["child"]], ["free", 0, 0, "", []], ["used", 1, 2, "", ["child"]]],
        },
        {
            "counts": {"free": 2, "used": 0, "cached": 1, "evictions": 0},
            "blocks": [["cached", 0, 2, "h0", []], ["free", 0, 0, "", []], ["free", 0, 0, "", []]],
        },
        {
            "counts": {"free": 2, "used": 1, "cached": 0, "evictions": 0},
            "blocks": [["used", 1, 2, "h0", ["prompt"]], ["free", 0, 0, "", []], ["free", 0, 0, "", []]],
        },
    ],
    "copy": 2,
    "found": 0,
    "found_k": [[1.0, 2.0], [3.0, 4.0]],
    "found_v": [[0.5, -1.0], [0.0, 0.25]],
}


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Register the command."""
    parser = subparsers.add_parser(
        "demo",
        help="play the worked example through the pool, and check it",
        description="Hash, export and fork a sequence of five tokens in the C pool, showing each step. "
        "The exit status is 1 when a single value differs from the worked example's.",
    )
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Play all of it; return 1 if a value differs."""
    page = Page()
    page.text(
        "The worked example: one sequence, tokens 1 2 3 4 5, in blocks of two positions;",
        "one layer, one KV head, head dimension 2. What you see comes out of the C pool,",
        '"ok" says that all values of a line are those of the worked example.',
    )
    _hashes(page)
    _block(page)
    _envelope(page)
    _fork(page)
    page.text("")
    if page.differing:
        page.text(f"{page.differing} of {page.compared} values differ from the worked example.")
        return 1
    page.text(f"All {page.compared} values are those of the worked example.")
    return 0


class Page:
    """What is printed, and the tally of the values compared."""

    def __init__(self) -> None:
        self.compared = 0
        self.differing = 0

    def text(self, *lines: str) -> None:
        """Print lines without figures."""
        print(*lines, sep="\n")

    def heading(self, title: str) -> None:
        """Begin a section."""
        self.text("", title, "-" * len(title))

    def checked(self, text: str, *pairs: tuple[object, object]) -> None:
        """Print a line that shows values, given as (what it is, what it should be)."""
        wrong = [(actual, expected) for actual, expected in pairs if actual != expected]
        print(f"{text:<{WIDTH - 8}} {'DIFFERS' if wrong else 'ok':>7}")
        for actual, expected in wrong:
            print(f"    expected {expected!r}, not {actual!r}")
        self.compared += len(pairs)
        self.differing += len(wrong)


def _hashes(page: Page) -> None:
    page.heading("1. The name of a full block: a chained hash")
    page.text(
        "FNV-1a 64 of the hash of the block before (8 bytes, 0 for the first) and of the",
        "token ids (4 bytes each), least significant byte first.",
    )
    expected, parent = WORKED["hashes"], 0
    for i, should_be in enumerate(expected):
        tokens = TOKENS[2 * i : 2 * i + 2]
        goes_in = f"{struct.pack('<Q', parent).hex(' ')}  {struct.pack('<2I', *tokens).hex(' ')}"
        before, parent = f"h{i - 1}" if i else "0", block_hash(parent, tokens)
        page.text("", f"  block {i}: after {before}, tokens {tokens[0]} {tokens[1]}")
        page.checked(f"     {goes_in}", (goes_in, should_be["bytes"]))
        page.checked(f"     h{i} = {_hex64(parent)}", (_hex64(parent), should_be["hash"]))
    names = [_hex64(int(name)) for name in block_hashes(TOKENS, 2)]
    page.text("", "  block 2: token 5")
    page.checked("     is not full: it has no hash", (names, [should_be["hash"] for should_be in expected]))


def _block(page: Page) -> None:
    page.heading("2. Keys and values of block 0, as they lie in the pool")
    page.text("A row a position, in float16, least significant byte first.", "")
    with _pool(1) as pool:
        block = _fill_block_0(pool)
        rows = [
            (f"{name}, position {position}", array[0, position])
            for name, array in (("K", pool.k(block, 0)), ("V", pool.v(block, 0)))
            for position in range(2)
        ]
    for (at, row), should_be in zip(rows, WORKED["rows"], strict=True):
        values, raw = row.tolist(), row.astype("<f2").tobytes().hex(" ")
        shown = "".join(f"{value:>7}" for value in values)
        page.checked(
            f"  {at}: {shown}     {raw}",
            (at, should_be["at"]), (values, should_be["values"]), (raw, should_be["bytes"]),
        )  # fmt: skip


def _envelope(page: Page) -> None:
    page.heading("3. The block on the wire: an envelope of 28 + 12 + 16 + 4 bytes")
    with _pool(1) as pool:
        block = _fill_block_0(pool)
        pool.register(block, block_hash(0, TOKENS[:2]))
        envelope = pool.export([block])
    page.text("offset  bytes                    field", "")
    offset = 0
    for should_be, (field, size, value_of) in zip(WORKED["envelope"], _FIELDS, strict=True):
        raw = envelope[offset : offset + size]
        value = value_of(raw)
        page.checked(
            f"{offset:>6}  {raw.hex(' '):<23}  {field:<12}  {value}",
            (offset, should_be["offset"]), (raw.hex(" "), should_be["bytes"]),
            (field, should_be["field"]), (value, should_be["value"]),
        )  # fmt: skip
        offset += size
    page.text("")
    page.checked(f"  {len(envelope)} bytes in all", (len(envelope), WORKED["size"]), (offset, WORKED["size"]))
    crc = f"0x{crc32c(envelope[:-4]):08X}"
    page.checked(f"  CRC-32C of the {len(envelope) - 4} bytes before it: {crc}", (crc, WORKED["crc"]))


def _fork(page: Page) -> None:
    page.heading("4. States through a fork, in a pool of three blocks")
    h0 = block_hash(0, TOKENS[:2])
    tables: dict[str, list[int]] = {}
    with _pool(3) as pool:
        steps = iter(enumerate(WORKED["fork"]))

        def step(title: str, *pairs: tuple[object, object]) -> None:
            number, should_be = next(steps)
            page.text("")
            if pairs:
                page.checked(f"({number}) {title}", *pairs)
            else:
                page.text(f"({number}) {title}")
            _picture(page, pool, tables, h0, should_be)

        step("A new pool: every block is free.")

        tables["parent"] = pool.alloc(2).tolist()
        step("alloc(2): the sequence takes two blocks, and is their only holder.")

        first, second = tables["parent"]
        _write_block_0(pool, first)
        pool.k(second, 0)[0, 0] = pool.v(second, 0)[0, 0] = 5.0
        pool.set_fill(second, 1)
        pool.register(first, h0)
        step("Positions 0, 1, 2 are written; register: the full block 0 is h0.")

        pool.ref(tables["parent"])
        tables["child"] = list(tables["parent"])
        step("Fork: ref on each block; the child shares them all.")

        copy = pool.cow(second)
        tables["child"][1] = copy
        pool.k(copy, 0)[0, 1] = pool.v(copy, 0)[0, 1] = 6.0
        pool.set_fill(copy, 2)
        step(f"The child writes position 3: cow(1) gives it block {copy}, a copy.", (copy, WORKED["copy"]))

        pool.unref(tables.pop("parent"))
        step("The parent finishes: block 1, its own now and unregistered, is free.")

        pool.unref(tables.pop("child"))
        step("The child finishes: block 0 has a name, and stays cached.")

        found = pool.lookup(h0)
        tables["prompt"] = [] if found is None else [found]
        step(f"A new prompt starts with 1 2: lookup(h0) gives block {found} back.", (found, WORKED["found"]))

        for name, array in (("K", pool.k(first, 0)), ("V", pool.v(first, 0))):
            values = array[0].tolist()
            page.checked(
                f"    its {name} is still there, not recomputed: {values}",
                (values, WORKED[f"found_{name.lower()}"]),
            )


def _picture(page: Page, pool: Pool, tables: dict[str, list[int]], h0: int, should_be: dict[str, Any]) -> None:
    """Draw a cell for each block with what it is and who holds it, and the counts below."""
    cells: list[tuple[str, int, int, str, list[str]]] = []
    for block in range(len(pool)):
        name = {0: "", h0: "h0"}.get(pool.registered_hash(block), "?")
        holders = [holder for holder, table in tables.items() if block in table]
        cells.append((pool.state(block), pool.refcount(block), pool.fill(block), name, holders))

    rows = [
        [f"{state}{f' as {name}' if name else ''}" for state, _, _, name, _ in cells],
        [" + ".join(holders) or "-" for *_, holders in cells],
        [f"refcount {count}  fill {fill}" for _, count, fill, _, _ in cells],
    ]
    page.text("    " + "  ".join(f"+{f'- block {block} ':-<20}+" for block in range(len(cells))))
    for row in rows:
        page.text("    " + "  ".join(f"| {text:<18} |" for text in row))
    page.text("    " + "  ".join(f"+{'-' * 20}+" for _ in cells))

    counts = pool.stats()._asdict()
    shown = "   ".join(f"{state} {count}" for state, count in counts.items())
    values = [value for cell in cells for value in cell]
    expected = [value for cell in should_be["blocks"] for value in cell]
    page.checked(
        f"    {shown}",
        *zip(values, expected, strict=True),
        *((counts[state], count) for state, count in should_be["counts"].items()),
    )


def _pool(n_blocks: int) -> Pool:
    return Pool(n_blocks, 2, n_layers=1, n_kv_heads=1, head_dim=2)


def _fill_block_0(pool: Pool) -> int:
    block = int(pool.alloc(1)[0])
    _write_block_0(pool, block)
    return block


def _write_block_0(pool: Pool, block: int) -> None:
    pool.k(block, 0)[0] = K
    pool.v(block, 0)[0] = V
    pool.set_fill(block, 2)


def _hex64(value: int) -> str:
    return f"0x{value:016X}"


def _text(raw: bytes) -> str:
    return raw.decode("ascii", "backslashreplace")


def _unsigned(raw: bytes) -> str:
    return str(int.from_bytes(raw, "little"))


def _hex(raw: bytes) -> str:
    return f"0x{int.from_bytes(raw, 'little'):0{2 * len(raw)}X}"


def _floats(raw: bytes) -> str:
    return " ".join(str(value) for value in struct.unpack("<4e", raw))


#: The fields of an envelope of one block of this shape: name, bytes, value as text.
_FIELDS: tuple[tuple[str, int, Callable[[bytes], str]], ...] = (
    ("magic", 4, _text),
    ("version", 2, _unsigned),
    ("dtype", 2, _unsigned),
    ("n_blocks", 4, _unsigned),
    ("block_tokens", 4, _unsigned),
    ("n_layers", 4, _unsigned),
    ("n_kv_heads", 4, _unsigned),
    ("head_dim", 4, _unsigned),
    ("block_hash", 8, _hex),
    ("n_tokens", 4, _unsigned),
    ("K", 8, _floats),
    ("V", 8, _floats),
    ("crc32c", 4, _hex),
)

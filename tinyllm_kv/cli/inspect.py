"""tinyllm-kv inspect: what is in an envelope, and whether it is whole."""

from __future__ import annotations

import argparse
import json
import mmap
import os
import stat
import struct
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ..envelope import Envelope
from ..errors import EnvelopeError
from ..hashing import block_hashes

if TYPE_CHECKING:
    from collections.abc import Iterator

    import numpy.typing as npt
    from _typeshed import ReadableBuffer

_CHUNK = 1 << 16  # values looked at together: bounds the memory that a block takes

_DESCRIPTION = """\
Show each envelope's header, a line for each block, and whether its checksum is right.

smallest and largest are over the finite values of the positions that hold data; NaNs and infinities are
counted beside them. The exit status is 1 when a file cannot be read, breaks a rule of the format (one line
says which, where, and what was found) or does not hold the tokens of --tokens. In JSON a file of other
tokens is "valid": true all the same, being a whole envelope, and "tokens_differ" says in what they differ."""

_EPILOG = """\
the HASH of a namespace:
  python -c "from tinyllm_kv import namespace; print(namespace('tenant', 'a'))\""""


def add_parser(subparsers: Any) -> None:
    """Register the command and its arguments."""
    parser = subparsers.add_parser(
        "inspect",
        help="show what is in an envelope and whether it is whole",
        description=_DESCRIPTION,
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("files", nargs="+", metavar="FILE", help="an envelope")
    parser.add_argument("--json", action="store_true", help="print a JSON object a file, a line each")
    parser.add_argument(
        "--tokens",
        type=_token_ids,
        metavar="1,2,3",
        help="(or @FILE, a file of the same) check that the blocks are those of these tokens: full ones by hash, a partial last one by its count",
    )
    parser.add_argument(
        "--parent",
        type=_hash,
        default=0,
        metavar="HASH",
        help="the parent of the first block for --tokens, a namespace (default: 0, no namespace)",
    )
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Inspect every file; return 0 when all are whole and as expected, 1 otherwise."""
    return max([_inspect(path, args) for path in args.files])


def _token_ids(text: str) -> list[int]:
    where = repr(text)
    if text.startswith("@"):
        try:
            text = Path(text[1:]).read_text()
        except (OSError, ValueError) as error:
            raise argparse.ArgumentTypeError(f"cannot read {where}: {error}") from None
    try:
        tokens = [int(part) for part in text.split(",")] if text.strip() else []
    except ValueError:
        raise argparse.ArgumentTypeError(f"not integers with commas between them: {where}") from None
    for token in tokens:
        if not 0 <= token < 2**32:
            raise argparse.ArgumentTypeError(f"a token id is in 0 .. 4294967295, not {token}")
    return tokens


def _hash(text: str) -> int:
    try:
        value = int(text, 0)
    except ValueError:
        raise argparse.ArgumentTypeError(f"not an integer: {text!r}") from None
    if not 0 <= value < 2**64:
        raise argparse.ArgumentTypeError(f"a hash is in 0 .. 2^64-1, not {text}")
    return value


def _inspect(path: str, args: argparse.Namespace) -> int:
    try:
        envelope = Envelope.parse(_read(path))
    except EnvelopeError as error:
        where = {"rule": error.rule, "offset": error.offset}
        return _fail(path, str(error).removeprefix("Envelope.parse: "), where, args.json)
    except OSError as error:
        return _fail(path, error.strerror or str(error), {}, args.json)

    compared = args.tokens is not None
    difference = _difference(envelope, args.tokens, args.parent) if compared else None
    if args.json:
        print(json.dumps(_as_json(path, envelope) | ({"tokens_differ": difference} if compared else {})))
        return int(difference is not None)
    _print(path, envelope)
    if compared:
        print("tokens    right" if difference is None else f"tokens    differ: {difference}")
    return 0 if difference is None else _fail(path, difference, {}, False)


def _fail(path: str, why: str, where: dict[str, Any], as_json: bool) -> int:
    if as_json:
        print(json.dumps({"file": path, "valid": False, **where, "error": why}))
    else:
        print(f"tinyllm-kv inspect: {path}: {why}", file=sys.stderr)
    return 1


def _read(path: str) -> ReadableBuffer:
    """Return a file's bytes: mapped, unless it is empty or no regular file (a pipe)."""
    with open(path, "rb") as file:
        status = os.fstat(file.fileno())
        if stat.S_ISREG(status.st_mode) and status.st_size:
            return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        return file.read()


def _difference(envelope: Envelope, tokens: list[int], parent: int) -> str | None:
    """Say in what an envelope is not that of these tokens; None when it is."""
    B, given, held = envelope.block_tokens, len(tokens), _held(envelope)
    if given != held:
        return f"{given} token{'' if given == 1 else 's'} given, the file holds {held}"
    names = block_hashes(tokens, B, parent).tolist() if B else []
    for i, (name, n) in enumerate(zip(envelope.hashes, envelope.n_tokens, strict=True)):
        belong = min(B, max(0, given - i * B))
        expected = names[i] if i < len(names) else 0
        if n != belong:
            return f"block {i} has n_tokens {n}, of the tokens given {belong} belong there"
        if name != expected:
            return f"block {i} has {_name(int(name))}, its tokens give {_name(expected)}"
    return None


def _held(envelope: Envelope) -> int:
    return int(envelope.n_tokens.sum(dtype=np.uint64))


def _name(value: int) -> str:
    return f"the hash 0x{value:016X}" if value else "no hash"


def _blocks(envelope: Envelope) -> Iterator[dict[str, Any]]:
    """Yield what there is to say about each block, looking at one after another."""
    for i, (name, n) in enumerate(zip(envelope.hashes, envelope.n_tokens, strict=True)):
        yield {
            "index": i,
            "hash": f"0x{name:016X}" if name else None,
            "n_tokens": int(n),
            **_summary(envelope.payload[i, ..., :n, :]),
        }


def _summary(values: npt.NDArray[np.float16]) -> dict[str, Any]:
    """Return the extremes of the finite values (None without any), and how many others there are.

    In integers, many times as fast as in float16: without its sign bit the pattern of a NaN is above
    0x7C00 and that of an infinity is 0x7C00; with the other bits inverted below zero, patterns are in
    the order of their values.
    """
    extremes: list[int] = []
    nan = inf = 0
    for chunk in np.nditer(
        values.view("<i2"), ["external_loop", "buffered", "zerosize_ok"], buffersize=_CHUNK
    ):
        bits = np.asarray(chunk)
        unsigned = bits & 0x7FFF
        nan += int(np.count_nonzero(unsigned > 0x7C00))
        inf += int(np.count_nonzero(unsigned == 0x7C00))
        finite = bits[unsigned < 0x7C00]
        if finite.size:
            ordered = finite ^ (finite >> 15 & 0x7FFF)
            extremes += [int(ordered.min()), int(ordered.max())]
    smallest, largest = (_value(pick(extremes)) if extremes else None for pick in (min, max))
    return {"smallest": smallest, "largest": largest, "nan": nan, "inf": inf}


def _value(ordered: int) -> float:
    (value,) = struct.unpack("<e", struct.pack("<h", ordered ^ (ordered >> 15 & 0x7FFF)))
    return float(value)


def _as_json(path: str, envelope: Envelope) -> dict[str, Any]:
    header = ("version", "dtype", "n_blocks", "block_tokens", "n_layers", "n_kv_heads", "head_dim")
    return {
        "file": path,
        "valid": True,
        **{key: getattr(envelope, key) for key in header},
        "crc": f"0x{envelope.crc:08X}",
        "blocks": list(_blocks(envelope)),
    }


_ROW = "{:>8}  {:18}  {:>11}  {:>11}  {:>11}  {:>6}  {:>6}"


def _print(path: str, e: Envelope) -> None:
    print(path)
    print(f"format    version {e.version}, dtype {e.dtype} (float16)")
    shape = ("n_layers", "n_kv_heads", "block_tokens", "head_dim")
    print("shape     " + ", ".join(f"{key} {getattr(e, key)}" for key in shape))
    print(f"holds     n_blocks {e.n_blocks}, {_held(e)} tokens")
    if e.n_blocks:
        print(_ROW.format("block", "hash", "tokens", "smallest", "largest", "NaN", "inf"))
    for b in _blocks(e):
        low, high = ("-" if b[key] is None else f"{b[key]:.6g}" for key in ("smallest", "largest"))
        tokens = f"{b['n_tokens']} of {e.block_tokens}"
        print(_ROW.format(b["index"], b["hash"] or "-", tokens, low, high, b["nan"], b["inf"]))
    print(f"checksum  CRC-32C 0x{e.crc:08X}, right")

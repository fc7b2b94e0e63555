"""The envelope format, version 1, written down a second time.

An independent reading of the format in plain Python: no code of the library, one bit or one byte at a
time, nothing clever. It makes the golden files that every implementation is compared with:

    fixtures/worked_envelope.bin   the 60-byte envelope that the format's description works out by hand
    fixtures/kv_wire_v1.json       the parity suite kv.wire.v1: cases with their envelopes, a case a line

    python tests/parity/transcription.py           writes both
    python tests/parity/transcription.py --check   compares both, exit status 1 when one differs

A case is a dict of B (positions of a block), L (layers), H (heads), D (head dimension), tokens (ids) and
values (f16 bit patterns of the whole sequence, flat, [position][layer][K, V][head][dim]). Its envelope:

    "TLKV"  u16 version 1  u16 dtype 1  u32 n_blocks  u32 B  u32 L  u32 H  u32 D
    for each block:  u64 hash (0: a partial block)  u32 n_tokens  payload
    u32 CRC-32C of everything before it

The payload is f16 [layer][K, V][head][position of the block][dim], zero at and past n_tokens. Everything
is little-endian.
"""

import json
import struct
import sys
from pathlib import Path

FIXTURES = Path(__file__).resolve().parents[2] / "fixtures"


# ---- the format --------------------------------------------------------------------------------


def crc32c(data):
    """Return the CRC-32C of bytes: reflected polynomial 0x82F63B78, all ones in, all ones out."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = (crc >> 1) ^ 0x82F63B78 if crc & 1 else crc >> 1
    return crc ^ 0xFFFFFFFF


def fnv1a64(data):
    """Return the FNV-1a 64 hash of bytes."""
    value = 0xCBF29CE484222325
    for byte in data:
        value ^= byte
        value = value * 0x100000001B3 % 2**64
    return value


def block_hash(parent, tokens):
    """Return a full block's name: its parent's and its own tokens, hashed; never 0, which says "none"."""
    data = struct.pack("<Q", parent)
    for token in tokens:
        data += struct.pack("<I", token)
    return fnv1a64(data) or 1


def record(case, first, parent):
    """Return one block, the one that begins at position `first`, as (hash, its bytes on the wire)."""
    B, L, H, D, values = case["B"], case["L"], case["H"], case["D"], case["values"]
    tokens = case["tokens"][first : first + B]
    name = block_hash(parent, tokens) if len(tokens) == B else 0
    data = struct.pack("<QI", name, len(tokens))
    for layer in range(L):
        for k_or_v in range(2):
            for head in range(H):
                for slot in range(B):
                    for dim in range(D):
                        bits = 0
                        if slot < len(tokens):
                            bits = values[((((first + slot) * L + layer) * 2 + k_or_v) * H + head) * D + dim]
                        data += struct.pack("<H", bits)
    return name, data


def envelope(case):
    """Return the envelope of a case's blocks, in order, full blocks under their chained hashes."""
    B, L, H, D, tokens = case["B"], case["L"], case["H"], case["D"], case["tokens"]
    assert len(case["values"]) == len(tokens) * L * 2 * H * D
    starts = range(0, len(tokens), B)
    data = b"TLKV" + struct.pack("<HHIIIII", 1, 1, len(starts), B, L, H, D)
    name = 0
    for first in starts:
        name, block = record(case, first, name)
        data += block
    return data + struct.pack("<I", crc32c(data))


# ---- the cases ---------------------------------------------------------------------------------

# NaNs (quiet, signalling, negative, all ones), infinities, subnormals (smallest, largest), zeros, extremes
UNUSUAL = [0x7E00, 0x7C01, 0xFD55, 0xFFFF, 0x7C00, 0xFC00, 0x0001, 0x83FF, 0x8000, 0x0000, 0x7BFF, 0xFBFF]

# K = [[1, 2], [3, 4]] and V = [[0.5, -1], [0, 0.25]], position after position
WORKED = [0x3C00, 0x4000, 0x3800, 0xBC00, 0x4200, 0x4400, 0x0000, 0x3400]


def numbers(seed, count, bits):
    """Return `count` numbers of the top `bits` bits of a 64-bit linear congruential generator."""
    state, made = seed, []
    for _ in range(count):
        state = (state * 6364136223846793005 + 1442695040888963407) % 2**64
        made.append(state >> (64 - bits))
    return made


def case(name, B, L, H, D, tokens, values=None):
    """Return a case; values that are not given come from the generator, seeded by the name."""
    if values is None:
        values = numbers(fnv1a64(name.encode()), len(tokens) * L * 2 * H * D, 16)
    return {"name": name, "B": B, "L": L, "H": H, "D": D, "tokens": tokens, "values": values}


def cases():
    """Return the cases of the suite, the worked envelope first."""
    return [
        case("worked_envelope", 2, 1, 1, 2, [1, 2], WORKED),
        case("worked_sequence", 2, 1, 1, 2, [1, 2, 3, 4, 5], WORKED + numbers(1, 12, 16)),
        case("no_tokens", 16, 2, 2, 4, []),
        case("one_token_only", 4, 2, 2, 3, [7]),
        case("one_token_in_the_tail", 5, 2, 1, 3, list(range(100, 111))),
        case("tail_one_short_of_full", 8, 1, 2, 4, list(range(15))),
        case("several_layers_and_heads", 4, 3, 2, 5, numbers(2, 10, 17)),
        case("exact_multiple", 8, 2, 3, 2, numbers(3, 24, 15)),
        case("exactly_one_block_of_16", 16, 1, 1, 4, numbers(4, 16, 16)),
        case("blocks_of_16_with_a_tail", 16, 2, 2, 4, numbers(5, 37, 18)),
        case("same_tokens_in_every_block", 3, 1, 3, 1, [9, 9, 9] * 3 + [9, 9]),
        case(
            "token_ids_of_every_width",
            4,
            1,
            1,
            2,
            [0, 255, 256, 65535, 65536, 2**24, 2**31, 2**32 - 1, 2**32 - 1],
        ),
        case("unusual_f16_patterns", 2, 1, 2, 3, [0, 0, 0], UNUSUAL * 3),
        case("wide_ids_seven_a_block", 7, 2, 1, 2, numbers(6, 20, 32)),
    ]


# ---- the golden files --------------------------------------------------------------------------


def golden_files():
    """Return what belongs into fixtures/, as {path: bytes}."""
    answered = [made | {"hex": envelope(made).hex()} for made in cases()]
    lines = ",\n".join(json.dumps(one, separators=(",", ":")) for one in answered)
    return {
        FIXTURES / "worked_envelope.bin": envelope(cases()[0]),
        FIXTURES / "kv_wire_v1.json": f"[\n{lines}\n]\n".encode(),
    }


def main(arguments):
    if arguments not in ([], ["--check"]):
        print("usage: transcription.py [--check]", file=sys.stderr)
        return 2
    different = 0
    for path, content in golden_files().items():
        if not arguments:
            path.parent.mkdir(exist_ok=True)
            path.write_bytes(content)
            print(f"{path.name}: written, {len(content)} bytes")
        elif not path.is_file() or path.read_bytes() != content:
            print(f"{path.name}: differs from the transcription", file=sys.stderr)
            different = 1
    return different


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

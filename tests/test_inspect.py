"""tinyllm-kv inspect: what it shows of an envelope, and how it says that one is broken."""

from __future__ import annotations

import json
import shlex
import struct
import subprocess
import sys
import sysconfig
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from parity import transcription

from tinyllm_kv import Pool, crc32c, namespace
from tinyllm_kv.cli import main

FIXTURES = Path(__file__).resolve().parents[1] / "fixtures"
WORKED = FIXTURES / "worked_envelope.bin"
GOLDEN = {case["name"]: case for case in json.loads((FIXTURES / "kv_wire_v1.json").read_text())}
SCRIPT = str(Path(sysconfig.get_path("scripts")) / "tinyllm-kv")


@pytest.fixture
def golden(tmp_path: Path) -> Any:
    """Return a function that writes a golden envelope, some bytes replaced, and gives its path."""

    def write(name: str, patches: dict[int, bytes] | None = None) -> str:
        data = bytearray.fromhex(GOLDEN[name]["hex"])
        for offset, new in (patches or {}).items():
            data[offset : offset + len(new)] = new
        path = tmp_path / name
        path.write_bytes(data)
        return str(path)

    return write


def as_json(capsys: pytest.CaptureFixture[str], *arguments: str, status: int = 0) -> list[dict[str, Any]]:
    """Return what inspect --json prints, an object a line, after checking its exit status."""
    assert main(["inspect", "--json", *arguments]) == status
    out, err = capsys.readouterr()
    assert err == ""
    return [json.loads(line, parse_constant=pytest.fail) for line in out.splitlines()]


def test_text(golden: Any, capsys: pytest.CaptureFixture[str]) -> None:
    """The text has the header, a line for each block and the checksum's verdict."""
    assert main(["inspect", golden("worked_sequence")]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [" ".join(line.split()) for line in lines[1:]] == [
        "format version 1, dtype 1 (float16)",
        "shape n_layers 1, n_kv_heads 1, block_tokens 2, head_dim 2",
        "holds n_blocks 3, 5 tokens",
        "block hash tokens smallest largest NaN inf",
        "0 0xA91AB0C1027B9366 2 of 2 -1 4 0 0",
        "1 0x03DF829571605C60 2 of 2 -15.2656 4444 0 0",
        "2 - 1 of 2 -111.5 0.212402 0 0",
        "checksum CRC-32C 0x738EA85C, right",
    ]


def test_console_script(tmp_path: Path) -> None:
    """The installed script and the module show the same and exit with 0."""
    shown = [
        subprocess.run(
            [*command, "inspect", str(WORKED)], cwd=tmp_path, capture_output=True, text=True, check=True
        ).stdout
        for command in ([SCRIPT], [sys.executable, "-m", "tinyllm_kv"])
    ]
    assert "0xA91AB0C1027B9366" in shown[0] and "CRC-32C 0x4F0B541C, right" in shown[0]
    assert shown[0] == shown[1]


def test_json_header(capsys: pytest.CaptureFixture[str]) -> None:
    """The JSON has the header's fields, the checksum and the blocks."""
    assert as_json(capsys, str(WORKED)) == [
        {
            **{
                "file": str(WORKED),
                "valid": True,
                "version": 1,
                "dtype": 1,
                "n_blocks": 1,
                "block_tokens": 2,
            },
            **{"n_layers": 1, "n_kv_heads": 1, "head_dim": 2, "crc": "0x4F0B541C"},
            "blocks": [
                {
                    **{"index": 0, "hash": "0xA91AB0C1027B9366", "n_tokens": 2},
                    **{"smallest": -1.0, "largest": 4.0, "nan": 0, "inf": 0},
                }
            ],
        }
    ]


@pytest.mark.parametrize("name", GOLDEN)
def test_values_of_every_golden_case(name: str, golden: Any, capsys: pytest.CaptureFixture[str]) -> None:
    """A block's extremes and counts are those of its filled positions, taken one value at a time."""
    case = GOLDEN[name]
    (shown,) = as_json(capsys, golden(name))
    a_position = case["L"] * 2 * case["H"] * case["D"]
    for block in shown["blocks"]:
        first = block["index"] * case["B"]
        bits = case["values"][first * a_position : (first + block["n_tokens"]) * a_position]
        values = [struct.unpack("<e", struct.pack("<H", b))[0] for b in bits]
        finite = [v for v in values if abs(v) < float("inf")]
        assert block["smallest"] == min(finite, default=None)
        assert block["largest"] == max(finite, default=None)
        assert block["nan"] == sum(v != v for v in values)
        assert block["inf"] == sum(abs(v) == float("inf") for v in values)
    assert sum(block["n_tokens"] for block in shown["blocks"]) == len(case["tokens"])


def test_every_f16_pattern(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Over all 65,536 patterns: 2,046 NaNs, two infinities, and the extremes of what is finite."""
    path = tmp_path / "all"
    write_envelope(path, np.arange(65536, dtype="<u2").reshape(1, 1, 2, 1, 1, 32768))
    (block,) = as_json(capsys, str(path))[0]["blocks"]
    assert (block["smallest"], block["largest"], block["nan"], block["inf"]) == (-65504.0, 65504.0, 2046, 2)


@pytest.mark.parametrize(
    "bits, expected", [(0x7E00, None), (0xFC00, None), (0x8001, -(2.0**-24)), (0x03FF, 1023 * 2.0**-24)]
)
def test_one_pattern_alone(
    bits: int, expected: float | None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A block without a finite value has no extremes; a subnormal value is shown exactly."""
    path = tmp_path / "one"
    write_envelope(path, np.full((1, 1, 2, 1, 1, 3), bits, "<u2"))
    (block,) = as_json(capsys, str(path))[0]["blocks"]
    assert (block["smallest"], block["largest"]) == (expected, expected)
    assert main(["inspect", str(path)]) == 0
    row = capsys.readouterr().out.splitlines()[5].split()
    assert row[5:7] == ["-" if expected is None else f"{expected:.6g}"] * 2


def test_stale_positions_do_not_count(golden: Any, capsys: pytest.CaptureFixture[str]) -> None:
    """What stands past the fill is not looked at, whatever a writer left there."""
    path = golden("one_token_only")
    data = bytearray(Path(path).read_bytes())
    payload = np.frombuffer(data, "<u2", 96, offset=40).reshape(2, 2, 2, 4, 3)
    payload[..., 1:, :] = 0x7C00
    Path(path).write_bytes(data[:-4] + struct.pack("<I", crc32c(data[:-4])))
    assert as_json(capsys, path)[0]["blocks"][0]["inf"] == 0


# ---- --tokens ----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", GOLDEN)
def test_tokens_of_every_golden_case(name: str, golden: Any, capsys: pytest.CaptureFixture[str]) -> None:
    """The tokens that an envelope was made of are its tokens, the partial tail among them."""
    tokens = ",".join(map(str, GOLDEN[name]["tokens"]))
    assert main(["inspect", "--tokens", tokens, golden(name)]) == 0
    assert capsys.readouterr().out.splitlines()[-1] == "tokens    right"
    assert as_json(capsys, "--tokens", tokens, golden(name))[0]["tokens_differ"] is None


@pytest.mark.parametrize(
    "tokens, difference",
    [
        ("1,2,3,5,5", "block 1 has the hash 0x03DF829571605C60, its tokens give the hash 0xA3DA2E9DC79618F1"),
        ("2,1,3,4,5", "block 0 has the hash 0xA91AB0C1027B9366, its tokens give the hash 0x"),
        ("1,2,3,4", "4 tokens given, the file holds 5"),
        ("1", "1 token given, the file holds 5"),
        ("1,2,3,4,5,6", "6 tokens given, the file holds 5"),
        ("1,2,3,4,5,6,7", "7 tokens given, the file holds 5"),
        ("", "0 tokens given, the file holds 5"),
    ],
)
def test_other_tokens(tokens: str, difference: str, golden: Any, capsys: pytest.CaptureFixture[str]) -> None:
    """Other tokens are told apart by their number or the first block that differs, exit status 1."""
    path = golden("worked_sequence")
    assert main(["inspect", "--tokens", tokens, path]) == 1
    out, err = capsys.readouterr()
    assert err.startswith(f"tinyllm-kv inspect: {path}: {difference}") and err.count("\n") == 1
    assert out.splitlines()[-1].startswith(f"tokens    differ: {difference}")
    (shown,) = as_json(capsys, "--tokens", tokens, path, status=1)
    assert shown["tokens_differ"].startswith(difference)
    assert shown["valid"] is True


def test_the_hash_expected_is_that_of_the_tokens() -> None:
    """The hash in the case above is what the transcription gives for tokens 3 and 5 after 1 and 2."""
    assert transcription.block_hash(transcription.block_hash(0, [1, 2]), [3, 5]) == 0xA3DA2E9DC79618F1


def test_partial_block_before_the_last(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """As many tokens as were given, but in other blocks, are told apart by the first of them."""
    path = tmp_path / "hole"
    with Pool(2, 2, n_layers=1, n_kv_heads=1, head_dim=1) as pool:
        ids = pool.alloc(2)
        pool.set_fill(ids[0], 1)
        pool.set_fill(ids[1], 2)
        path.write_bytes(pool.export(ids))
    assert main(["inspect", "--tokens", "1,2,3", str(path)]) == 1
    assert "block 0 has n_tokens 1, of the tokens given 2 belong there" in capsys.readouterr().err


def test_help_explains_tokens(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """--help says what "valid" means beside other tokens, and its command prints a namespace's hash."""
    with pytest.raises(SystemExit):
        main(["inspect", "--help"])
    text = capsys.readouterr().out
    assert '"tokens_differ" says in what they differ' in text
    (recipe,) = (line for line in text.splitlines() if line.startswith("  python -c "))
    command = [sys.executable, *shlex.split(recipe)[1:]]
    shown = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True).stdout
    assert shown == f"{namespace('tenant', 'a')}\n"


def test_tokens_of_blocks_without_positions(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """An envelope of no blocks of no positions holds no tokens, and is told so."""
    path = tmp_path / "nothing"
    write_envelope(path, np.zeros((0, 1, 2, 1, 0, 1), "<u2"))
    assert as_json(capsys, "--tokens", "", str(path))[0]["tokens_differ"] is None
    assert main(["inspect", "--tokens", "1", str(path)]) == 1
    assert "1 token given, the file holds 0" in capsys.readouterr().err


def test_full_block_without_a_hash(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A full block that was not registered does not have its tokens' hash."""
    path = tmp_path / "private"
    write_envelope(path, np.zeros((1, 1, 2, 1, 2, 1), "<u2"))
    assert main(["inspect", "--tokens", "1,2", str(path)]) == 1
    assert "block 0 has no hash, its tokens give the hash 0xA91AB0C1027B9366" in capsys.readouterr().err


def test_parent(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """--parent checks the hashes of a namespace."""
    path = tmp_path / "adapter"
    name = transcription.block_hash(77, [1, 2])
    write_envelope(path, np.zeros((1, 1, 2, 1, 2, 1), "<u2"), name)
    assert as_json(capsys, "--tokens", "1,2", "--parent", "77", str(path))[0]["tokens_differ"] is None
    assert as_json(capsys, "--tokens", "1,2", "--parent", "0x4D", str(path))[0]["tokens_differ"] is None
    assert as_json(capsys, "--tokens", "1,2", str(path), status=1)[0]["tokens_differ"].startswith(
        "block 0 has"
    )


@pytest.mark.parametrize(
    "argument",
    [
        "--tokens=1,x",
        "--tokens=-1",
        "--tokens=4294967296",
        "--tokens=1,,2",
        "--parent=-1",
        "--parent=0x1" + "0" * 16,
        "--parent=x",
    ],
)
def test_bad_arguments(argument: str, capsys: pytest.CaptureFixture[str]) -> None:
    """A token or parent that cannot be one is a usage error, exit status 2."""
    with pytest.raises(SystemExit) as caught:
        main(["inspect", argument, str(WORKED)])
    assert caught.value.code == 2
    assert argument.split("=")[0] in capsys.readouterr().err


# ---- broken files ------------------------------------------------------------------------------


PARTIAL = WORKED.read_bytes()[:36] + b"\1" + WORKED.read_bytes()[37:56]
PARTIAL_CRC = struct.pack("<I", transcription.crc32c(PARTIAL))


@pytest.mark.parametrize(
    "patches, rule, offset, words",
    [
        ({0: b"X"}, 2, 0, "the magic is b'XLKV', not b'TLKV'"),
        ({4: b"\2"}, 3, 4, "the version is 2, not 1"),
        ({6: b"\0"}, 3, 6, "the dtype is 0, not 1 (float16)"),
        ({8: b"\xff\xff\xff\xff"}, 1, 60, "60 bytes, the header implies 120259084292"),
        ({40: b"\1"}, 2, 56, "the CRC is 0x4F0B541C, that of the bytes before it is 0x"),
        ({36: b"\1", 56: PARTIAL_CRC}, 5, 36, "block 0 has n_tokens 1 under the hash"),
    ],
)
def test_broken(
    patches: Any, rule: int, offset: int, words: str, golden: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    """A broken file gets one line with the rule, the offset and the values found, and exit status 1."""
    path = golden("worked_envelope", patches)
    assert main(["inspect", path]) == 1
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith(f"tinyllm-kv inspect: {path}: rule {rule}, offset {offset}: {words}")
    assert err.count("\n") == 1
    (shown,) = as_json(capsys, path, status=1)
    assert (shown["valid"], shown["rule"], shown["offset"]) == (False, rule, offset)
    assert words in shown["error"]


def test_cut_short(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A file that ends early, at once even, breaks rule 1 where it ends."""
    path = tmp_path / "short"
    for n in (0, 31, 59):
        path.write_bytes(WORKED.read_bytes()[:n])
        (shown,) = as_json(capsys, str(path), status=1)
        assert (shown["rule"], shown["offset"]) == (1, n)


def test_one_broken_among_others(golden: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Every file is looked at, whatever is wrong with those before it; one bad file makes the status 1."""
    missing = str(tmp_path / "missing")
    shown = as_json(capsys, golden("no_tokens", {4: b"\7"}), missing, str(tmp_path), str(WORKED), status=1)
    assert [one["valid"] for one in shown] == [False, False, False, True]
    assert [one.get("error") for one in shown[1:3]] == ["No such file or directory", "Is a directory"]


# ---- large files -------------------------------------------------------------------------------


def write_envelope(path: Path, payload: Any, *names: int) -> None:
    """Write full blocks: uint16 [n_blocks, n_layers, 2, n_kv_heads, block_tokens, head_dim]."""
    n, n_layers, _, n_kv_heads, block_tokens, head_dim = payload.shape
    body = b"TLKV" + struct.pack("<HHIIIII", 1, 1, n, block_tokens, n_layers, n_kv_heads, head_dim)
    for i in range(n):
        body += struct.pack("<QI", names[i] if names else 0, block_tokens) + payload[i].tobytes()
    path.write_bytes(body + struct.pack("<I", crc32c(body)))


@pytest.mark.parametrize(
    "shape", [(32, 8, 2, 4, 16, 64), (1, 256, 2, 4, 16, 64)], ids=["many_blocks", "one_block"]
)
def test_memory_does_not_grow_with_the_file(
    shape: tuple[int, ...], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A file is mapped and looked at in pieces, of one block and of a large block alike."""
    path = tmp_path / "large"
    payload = np.zeros(shape, "<u2")
    last = payload.reshape(shape[0], -1)[-1]
    last[[0, 1, 2, 3, -3, -2, -1]] = [0xC000, 0x4000, 0x7E00, 0x7C00, 0xFC00, 0x7E00, 0x3C00]
    write_envelope(path, payload)
    size = path.stat().st_size
    del payload
    tracemalloc.start()
    try:
        (shown,) = as_json(capsys, str(path))
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    summary = {key: shown["blocks"][-1][key] for key in ("smallest", "largest", "nan", "inf")}
    assert summary == {"smallest": -2.0, "largest": 2.0, "nan": 2, "inf": 2}
    assert peak < size / 1.5, f"{peak} bytes taken for a file of {size}"


def test_tokens_may_come_from_a_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """--tokens @FILE reads what a command line has no room for; a file that is not there is a usage error."""
    file = tmp_path / "tokens"
    file.write_text("1,\n2\n")
    assert main(["inspect", "--tokens", f"@{file}", str(WORKED)]) == 0
    assert capsys.readouterr().out.splitlines()[-1] == "tokens    right"
    file.write_text("1,3\n")
    assert main(["inspect", "--tokens", f"@{file}", str(WORKED)]) == 1
    with pytest.raises(SystemExit) as ended:
        main(["inspect", "--tokens", f"@{tmp_path / 'nowhere'}", str(WORKED)])
    assert ended.value.code == 2
    assert "nowhere" in capsys.readouterr().err

"""tinyllm-kv replay: counts as an independent simulation has them, and bad lines named."""

from __future__ import annotations

import io
import json
import subprocess
import sys
from collections import OrderedDict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from parity import transcription

from tinyllm_kv import Pool
from tinyllm_kv.cli import main
from tinyllm_kv.cli import replay as command
from tinyllm_kv.cli.replay import Result, curve, read_trace, replay, request_hashes

SCRIPT = str(Path(sys.executable).with_name("tinyllm-kv"))
TRACE = Path(__file__).resolve().parents[1] / "fixtures" / "trace_small.jsonl"
REQUESTS = [json.loads(line)["hash_ids"] for line in TRACE.read_text().splitlines()]


def simulate(requests: list[list[int]], n_blocks: int, blocks_per_id: int = 1) -> dict[str, int]:
    """Count with a plain LRU cache of prefixes: no block, no hash, no pool."""
    cache: OrderedDict[tuple[Any, ...], None] = OrderedDict()  # the oldest first
    count = dict.fromkeys(("references", "hits", "evictions", "skipped", "skipped_references"), 0)
    for ids in requests:
        parts = [(one, part) for one in ids for part in range(blocks_per_id)]
        prefixes = [tuple(parts[: n + 1]) for n in range(len(parts))]
        count["references"] += len(prefixes)
        if len(prefixes) > n_blocks:
            count["skipped"] += 1
            count["skipped_references"] += len(prefixes)
            continue
        hits = 0
        while hits < len(prefixes) and prefixes[hits] in cache:
            cache.move_to_end(prefixes[hits])  # held: the last to make room
            hits += 1
        count["hits"] += hits
        while len(cache) + len(prefixes) - hits > n_blocks:
            cache.popitem(last=False)
            count["evictions"] += 1
        for prefix in reversed(prefixes):  # the tail is let go of first
            cache[prefix] = None
            cache.move_to_end(prefix)
    return count


def counted(result: Result) -> dict[str, int]:
    """Return the counts of a result that the simulation has too."""
    return {
        key: getattr(result, key)
        for key in ("references", "hits", "evictions", "skipped", "skipped_references")
    }


def hashes(requests: list[list[int]], blocks_per_id: int = 1) -> list[Any]:
    """Return each request's block hashes."""
    return [request_hashes(np.array(ids, np.uint64), blocks_per_id) for ids in requests]


def small_pool(n_blocks: int, block_tokens: int = 1) -> Pool:
    """Return a pool for counting."""
    return Pool(n_blocks, block_tokens, n_layers=1, n_kv_heads=1, head_dim=1)


def trace_of(tmp_path: Path, *lines: str | bytes) -> str:
    """Write a trace and return its path."""
    path = tmp_path / "trace.jsonl"
    path.write_bytes(b"".join((line if isinstance(line, bytes) else line.encode()) + b"\n" for line in lines))
    return str(path)


def line(**fields: Any) -> str:
    """Return a good line of a trace with some fields changed."""
    return json.dumps({"timestamp": 0, "input_length": 3, "output_length": 1, "hash_ids": [1, 2]} | fields)


# ---- counting ------------------------------------------------------------


def test_counted_by_hand() -> None:
    """Three blocks, four requests: two hits and two evictions, as on paper."""
    # cached afterwards, the oldest first:        12, 1 | 12, 13, 1 | 13, 1, 4 | 4, 12, 1
    with small_pool(3) as pool:
        result = replay(hashes([[1, 2], [1, 3], [4], [1, 2]]), pool)
        assert counted(result) == {
            "references": 7, "hits": 2, "evictions": 2, "skipped": 0, "skipped_references": 0
        }  # fmt: skip
        assert (result.requests, result.hit_rate) == (4, 2 / 7)
        assert pool.stats() == (0, 0, 3, 2)


@pytest.mark.parametrize("n_blocks", [1, 7, 16, 29, 64, 120, 1000])
def test_small_trace(n_blocks: int) -> None:
    """The trace in fixtures/ counts as the simulation counts it, whatever the pool's size."""
    with small_pool(n_blocks, 4) as pool:
        assert counted(replay(hashes(REQUESTS), pool)) == simulate(REQUESTS, n_blocks)
        assert pool.stats().used == 0


def test_small_trace_has_all_there_is_to_count() -> None:
    """At some size of these the small trace has hits, evictions and skipped requests at once."""
    assert min(simulate(REQUESTS, 16).values()) > 0


@given(
    requests=st.lists(st.lists(st.integers(0, 3), max_size=6), max_size=30),
    n_blocks=st.integers(1, 14),
    blocks_per_id=st.sampled_from([1, 2, 4]),
)
def test_random_traces(requests: list[list[int]], n_blocks: int, blocks_per_id: int) -> None:
    """Any requests, any size, any split of the ids count as the simulation counts them."""
    with small_pool(n_blocks) as pool:
        result = replay(hashes(requests, blocks_per_id), pool)
    assert counted(result) == simulate(requests, n_blocks, blocks_per_id)


def test_a_pool_with_a_past() -> None:
    """Evictions from before the replay are not counted."""
    with small_pool(2) as pool:
        assert replay(hashes([[1, 2], [3, 4]]), pool).evictions == 2
        assert replay(hashes([[3, 4], [5]]), pool).evictions == 1


def test_hashes_are_chained_and_take_ids_of_64_bits() -> None:
    """A block's hash is that of the two halves of its id after its parent, an id's parts too."""
    ids = [7, 2**32, 2**64 - 1]
    expected, parent = [], 0
    for one in ids:
        for _ in range(2):
            parent = transcription.block_hash(parent, [one % 2**32, one // 2**32])
            expected.append(parent)
    assert request_hashes(np.array(ids, np.uint64), 2).tolist() == expected


def test_rates_of_nothing() -> None:
    """Without references there is no hit rate, and no time per block."""
    with small_pool(1) as pool:
        result = replay([], pool)
    assert (result.requests, result.hit_rate, result.ns_per_block) == (0, None, None)


# ---- the command ---------------------------------------------------------


def test_console_script() -> None:
    """One size: requests, references, hits, hit rate, evictions and time per block are printed."""
    shown = subprocess.run([SCRIPT, "replay", TRACE, "--blocks", "29"], capture_output=True, text=True)
    assert (shown.returncode, shown.stderr) == (0, "")
    count = simulate(REQUESTS, 29)
    text = " ".join(shown.stdout.split())
    assert f"requests {len(REQUESTS)} block references {count['references']} " in text
    assert "blocks hits hit rate evictions skipped ns a block" in text
    rate = f"{100 * count['hits'] / count['references']:.2f} %"
    assert f"29 {count['hits']} {rate} {count['evictions']} {count['skipped']} " in text
    assert float(text.split()[-1]) > 0


def test_standard_input() -> None:
    """TRACE - is read from a pipe, with the same counts."""
    shown = subprocess.run(
        [SCRIPT, "replay", "-", "--blocks", "29", "--json"], input=TRACE.read_bytes(), capture_output=True
    )
    report = json.loads(shown.stdout)
    assert (report["trace"], report["sizes"][0]["hits"]) == ("standard input", simulate(REQUESTS, 29)["hits"])


def test_several_sizes(capsys: pytest.CaptureFixture[str]) -> None:
    """Several sizes give a row each, in ascending order and once each, and a curve."""
    assert main(["replay", str(TRACE), "--blocks", "64,16,120,16"]) == 0
    out = capsys.readouterr().out
    rows = [row.split() for row in out.splitlines() if row.endswith(tuple("0123456789")) and "%" in row]
    assert [row[:2] for row in rows] == [[str(n), str(simulate(REQUESTS, n)["hits"])] for n in (16, 64, 120)]
    assert "skipped: requests larger than the pool; their references count as misses" in out
    assert "\nhit rate\n" in out and out.count("o") >= 3


def test_a_size_that_served_nothing_has_no_rate(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """A size that skipped every request shows - for its rate, null in JSON, and is no point of the curve."""
    path = trace_of(tmp_path, line(hash_ids=[1, 2, 3]), line(hash_ids=[1, 2, 3]))
    assert main(["replay", path, "--blocks", "2,3,4"]) == 0
    out = capsys.readouterr().out
    rows = [row.split() for row in out.splitlines() if row.split()[:1] in (["2"], ["3"], ["4"])]
    assert rows[0] == ["2", "0", "-", "0", "2", "-"]
    assert [row[:4] for row in rows[1:]] == [[n, "3", "50.00", "%"] for n in "34"]
    below = out[out.index("\nhit rate\n") :].splitlines()
    assert below[-2].split() == ["blocks", "3", "4"]
    assert sum(row.count("o") for row in below if "|" in row) == 2
    assert main(["replay", path, "--blocks", "2,3", "--json"]) == 0
    assert [size["hit_rate"] for size in json.loads(capsys.readouterr().out)["sizes"]] == [None, 0.5]
    assert main(["replay", path, "--blocks", "2,3"]) == 0
    assert "\nhit rate\n" not in capsys.readouterr().out  # one point is no curve


def test_json(capsys: pytest.CaptureFixture[str]) -> None:
    """--json prints one object with the same counts for each size."""
    arguments = ["replay", str(TRACE), "--blocks", "16,64", "--block-tokens", "128", "--json"]
    assert main([*arguments, "--layers", "2", "--kv-heads", "3", "--head-dim", "5"]) == 0
    report = json.loads(capsys.readouterr().out)
    block_bytes = 2 * 2 * 3 * 128 * 5 * 2
    assert report["requests"] == len(REQUESTS)
    assert (report["block_tokens"], report["block_bytes"]) == (128, block_bytes)
    for size, n_blocks in zip(report["sizes"], (16, 64), strict=True):
        count = simulate(REQUESTS, n_blocks, blocks_per_id=4)
        assert report["references"] == count.pop("references")
        assert {key: size[key] for key in count} == count
        assert (size["blocks"], size["bytes"], size["slab"]) == (n_blocks, n_blocks * block_bytes, True)
        assert size["hit_rate"] == count["hits"] / report["references"]


def test_shape_makes_the_slab_real(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the shape options the pool has that shape, and the memory it takes is shown."""
    made: list[Pool] = []

    def recorded(*args: Any, **kwargs: Any) -> Pool:
        made.append(Pool(*args, **kwargs))
        return made[-1]

    monkeypatch.setattr(command, "Pool", recorded)
    shape = ["--block-tokens", "16", "--layers", "32", "--kv-heads", "8", "--head-dim", "128"]
    assert main(["replay", str(TRACE), "--blocks", "128", *shape]) == 0
    assert [pool.cfg[:5] for pool in made] == [(128, 16, 32, 8, 128)]
    assert made[0].block_bytes == 2 * 2**20
    out = capsys.readouterr().out
    assert "16 tokens, 2 MiB" in out and " 256 MiB " in out and "*" not in out


def test_more_memory_than_there_is(capsys: pytest.CaptureFixture[str]) -> None:
    """A size whose slab the machine does not give is counted in a pool without its shape, and the row says so."""
    shape = ["--layers", "4096", "--kv-heads", "4096", "--head-dim", "4096"]
    assert main(["replay", str(TRACE), "--blocks", "64", *shape]) == 0
    out = capsys.readouterr().out
    assert " 8 PiB* " in out
    assert "\n* more than this machine gives a process: the counts and the time of this row\n" in out
    assert "\n  come from a pool of as many blocks without the slab's shape\n" in out
    assert f" {simulate(REQUESTS, 64)['hits']} " in out


def test_shape_options_go_together(capsys: pytest.CaptureFixture[str]) -> None:
    """A part of the shape is a usage error."""
    with pytest.raises(SystemExit) as ended:
        main(["replay", str(TRACE), "--blocks", "4", "--layers", "2"])
    assert ended.value.code == 2
    assert "--layers, --kv-heads and --head-dim go together" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ([], "the following arguments are required: --blocks"),
        (["--blocks", "0"], "0 is not in 1 .. 4294967295"),
        (["--blocks", "4,"], "not an integer: ''"),
        (["--blocks", "4294967296"], "4294967296 is not in 1 .. 4294967295"),
        (["--blocks", "4", "--block-tokens", "48"], "48 does not divide 512"),
        (["--blocks", "4", "--block-tokens", "1024"], "1024 does not divide 512"),
        (["--blocks", "4", "--layers", "x"], "not an integer: 'x'"),
    ],
)
def test_bad_arguments(options: list[str], why: str, capsys: pytest.CaptureFixture[str]) -> None:
    """An argument out of its range is a usage error that says which and why."""
    with pytest.raises(SystemExit) as ended:
        main(["replay", str(TRACE), *options])
    assert ended.value.code == 2
    assert why in capsys.readouterr().err


def test_progress_on_a_terminal(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """On a terminal standard error counts up to 100 % and is wiped; elsewhere it stays empty."""

    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    monkeypatch.setattr(command, "PROGRESS_SECONDS", 0)
    assert main(["replay", str(TRACE), "--blocks", "4"]) == 0
    assert capsys.readouterr().err == ""
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    assert main(["replay", str(TRACE), "--blocks", "4"]) == 0
    shown = terminal.getvalue().split("\r")
    assert shown[-2:] == [f"100 %, {len(REQUESTS)} requests", "\033[K"]
    assert "\r" not in capsys.readouterr().out


# ---- the curve and the picture -------------------------------------------


def test_curve() -> None:
    """Each size is a point at its height over a logarithmic axis that names it."""
    lines = curve([(10, 0.0), (100, 0.2), (1000, 0.4)], width=21, height=4).splitlines()
    assert lines == [
        "hit rate",
        "    40 % |                  ..o",
        "         |             .....",
        "    20 % |        ..o..",
        "         |   .....",
        "     0 % |o..",
        "         +---------------------",
        "  blocks  10        100   1,000",
        "          o measured, . interpolated",
    ]


def test_curve_keeps_the_labels_apart() -> None:
    """A size whose label has no room gets none; the ends are always named."""
    axis = curve([(1000, 0.1), (1010, 0.1), (2000, 0.1), (2001, 0.3)]).splitlines()[-2]
    assert axis.split() == ["blocks", "1,000", "2,001"]


def test_plot_without_matplotlib(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Without matplotlib --plot says in one line what to install, before any work."""
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    assert main(["replay", str(TRACE), "--blocks", "16", "--plot", "curve.png"]) == 1
    assert capsys.readouterr() == (
        "",
        "tinyllm-kv replay: --plot needs matplotlib: pip install matplotlib\n",
    )


# ---- bad lines -----------------------------------------------------------

BAD = {
    "": "empty",
    "{": "not JSON: Expecting property name enclosed in double quotes, column 2",
    "[1, 2]": "a JSON object expected, not an array",
    '"x"': "a JSON object expected, not a string",
    "7": "a JSON object expected, not the number 7",
    "null": "a JSON object expected, not null",
    line(timestamp=True): "timestamp: a number expected, not true",
    line(timestamp="0"): "timestamp: a number expected, not a string",
    line(timestamp=-1): "timestamp: -1 is negative",
    line(timestamp=float("nan")): "not JSON: NaN is no number",
    line(input_length=1.5): "input_length: an integer expected, not the number 1.5",
    line(input_length=-5): "input_length: -5 is not in 0 .. 2^64-1",
    line(output_length=None): "output_length: an integer expected, not null",
    line(output_length=False): "output_length: an integer expected, not false",
    line(hash_ids="1,2"): "hash_ids: an array expected, not a string",
    line(hash_ids={}): "hash_ids: an array expected, not an object",
    line(hash_ids=[1, -2]): "hash_ids[1]: -2 is not in 0 .. 2^64-1",
    line(hash_ids=[2**64]): f"hash_ids[0]: {2**64} is not in 0 .. 2^64-1",
    line(hash_ids=[0, True]): "hash_ids[1]: an integer expected, not true",
    line(hash_ids=[0, 1.0]): "hash_ids[1]: an integer expected, not the number 1.0",
    line(hash_ids=[[1]]): "hash_ids[0]: an integer expected, not an array",
    line(hash_ids=[10**200]): "hash_ids[0]: a value is not in 0 .. 2^64-1",
    '{"timestamp": 0, "input_length": 1, "output_length": 1}': "hash_ids is missing",
    '{"hash_ids": []}': "timestamp is missing",
    "[" * 100_000: "not JSON that can be read: nested too deeply",
}


@pytest.mark.parametrize(("bad", "why"), BAD.items(), ids=BAD.values())
def test_bad_line(bad: str, why: str, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """A bad line ends the replay: one line with its number and what is wrong, status 1."""
    path = trace_of(tmp_path, line(), line(), bad, line())
    assert main(["replay", path, "--blocks", "4"]) == 1
    assert capsys.readouterr() == ("", f"tinyllm-kv replay: {path}: line 3: {why}\n")


def test_bad_bytes(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """Bytes that are no UTF-8 are named with their place."""
    path = trace_of(tmp_path, b'{"timestamp": "\xff"}')
    assert main(["replay", path, "--blocks", "4"]) == 1
    assert capsys.readouterr().err.endswith("line 1: not UTF-8: invalid start byte at byte 15\n")


def test_number_of_thousands_of_digits(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """A number that Python refuses to read is a bad line, too."""
    path = trace_of(tmp_path, line().replace("[1, 2]", f"[{'9' * 5000}]"))
    assert main(["replay", path, "--blocks", "4"]) == 1
    assert ": line 1: " in capsys.readouterr().err


def test_good_lines() -> None:
    """More fields, an empty request, a fraction of a millisecond and the largest id are fine."""
    lines = [line(hash_ids=[], more=[]), line(timestamp=0.5, hash_ids=[2**64 - 1])]
    assert [ids.tolist() for ids in read_trace((each.encode() for each in lines), "t")] == [[], [2**64 - 1]]


def test_a_trace_is_read_as_it_comes() -> None:
    """Requests before a bad line are out before that line is read."""
    requests = read_trace(iter([line().encode(), b"bad"]), "t")
    assert next(requests).tolist() == [1, 2]

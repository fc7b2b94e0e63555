"""The benchmark's own tests: its peer is a fair one, and all of it runs; nothing here depends on the clock."""

from __future__ import annotations

import importlib.util
import json
import random
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tinyllm_kv import KVError, Pool

BENCH = Path(__file__).parent / "bench"


@pytest.fixture(scope="module", autouse=True)
def bench_on_the_path() -> Iterator[None]:
    """Let `import rows` find tests/bench, as a script there does."""
    sys.path.insert(0, str(BENCH))
    yield
    sys.path.remove(str(BENCH))


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    """40 requests of up to 30 blocks that share prefixes, as a trace."""
    rng = random.Random(4)
    prefixes = [[100 * p + i for i in range(20)] for p in range(6)]
    path = tmp_path / "trace.jsonl"
    with open(path, "w") as file:
        for n in range(40):
            ids = rng.choice(prefixes)[: rng.randrange(1, 21)] + [10_000 + 10 * n + i for i in range(rng.randrange(10))]
            print(json.dumps({"timestamp": n, "input_length": 1, "output_length": 1, "hash_ids": ids}), file=file)
    return path


# ---- the peer ------------------------------------------------------------------


def answer(pool: Any, call: str, *arguments: Any) -> Any:
    """Return a call's answer in plain values, "refused" for a refusal."""
    try:
        result = getattr(pool, call)(*arguments)
    except (KVError, ValueError, IndexError):
        return "refused"
    if isinstance(result, tuple):
        return list(result[0]), result[1]
    return list(result) if hasattr(result, "__len__") else result


@pytest.mark.parametrize("seed", range(8))
def test_plain_pool_answers_as_the_pool_does(seed: int) -> None:
    """Random calls, good and bad, get the same ids, counts and refusals from either pool."""
    from plain_pool import PlainPool

    rng = random.Random(seed)
    n, tokens = (1, 5, 24, 70)[seed % 4], 4
    most = 5 + n // 3  # of a batch
    plain = PlainPool(n, tokens)
    answers = set()
    with Pool(n, tokens, n_layers=1, n_kv_heads=1, head_dim=1) as pool:
        held: list[int] = []
        for _ in range(1500):
            some = rng.choices(held or [0], k=rng.randrange(most))
            names = [rng.randrange(2 * n) for _ in range(rng.randrange(most))]
            call, *arguments = rng.choice(
                [
                    ("alloc", rng.randrange(-1, most)),
                    ("acquire", names, rng.randrange(-1, most)),
                    ("match_prefix", names),
                    ("ref", some),
                    ("ref", [rng.randrange(n)]),
                    ("unref", some),
                    ("unref", held[len(held) // 2 :]),
                    ("unref", [*some, n]),
                    ("set_fill", some, rng.choice([tokens, tokens, 1, tokens + 1])),
                    ("register_many", some, [rng.randrange(2 * n) for _ in some]),
                    ("register_many", some, names),
                ]
            )
            ours, theirs = answer(pool, call, *arguments), answer(plain, call, *arguments)
            assert ours == theirs, (call, arguments)
            assert tuple(pool.stats()) == plain.stats(), (call, arguments)
            answers.add((call, ours == "refused"))
            if ours == "refused":
                continue
            if call in ("alloc", "acquire", "match_prefix"):
                held += ours[0] if call == "acquire" else ours
            elif call == "ref":
                held += arguments[0]
            elif call == "unref":
                for id in arguments[0]:
                    held.remove(id)
    assert {(call, False) for call in ("alloc", "acquire", "ref", "unref", "set_fill", "register_many")} <= answers
    assert {(call, True) for call in ("alloc", "acquire", "ref", "unref", "set_fill", "register_many")} <= answers


def test_both_replay_a_trace_alike(trace: Path) -> None:
    """The replay finds the hits that a set of cached prefixes finds, from either pool."""
    import rows

    replays = rows.Replays(trace, None, 512, 10_000)
    seen: set[int] = set()
    hits = 0
    for hashes in replays.requests:  # chained: a hash that was seen names a prefix that was
        hits += sum(hash in seen for hash in hashes.tolist())
        seen.update(hashes.tolist())
    replays.ours()
    replays.plain()()
    assert replays._counted == {(hits, 0)} and hits > 100


def test_a_peer_that_counts_otherwise_is_noticed(trace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A plain pool that evicts the newest block first ends the benchmark."""
    import rows

    replays = rows.Replays(trace, None, 512, 40)
    replays.ours()
    replays.plain()()

    class NewestFirst(rows.PlainPool):  # type: ignore[misc]
        def _evict(self, n: int) -> list[int]:
            self._cached = type(self._cached)(reversed(self._cached.items()))
            return super()._evict(n)

    monkeypatch.setattr(rows, "PlainPool", NewestFirst)
    with pytest.raises(RuntimeError, match="disagree"):
        replays.plain()()


# ---- the table -----------------------------------------------------------------


def test_all_of_it_runs(trace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Every row is measured on tiny inputs, but for those whose need is really not there; no verdict is looked at."""
    import run
    from measure import compiler

    assert run.main(["--quick", "--json", "--trace", str(trace)]) == 0
    report = json.loads(capsys.readouterr().out)
    assert len(report["rows"]) == sum(len(group.targets) for group in run.GROUPS) >= 27
    there = {
        "google-crc32c": importlib.util.find_spec("google_crc32c") is not None,
        "cc": shutil.which(compiler()[0]) is not None,
        "valgrind": shutil.which("valgrind") is not None,
        "trace": True,
    }
    measurable = {group.name: all(there[need] for need in group.needs) for group in run.GROUPS}
    for row in report["rows"]:
        assert (row["measured"] is not None) == measurable[row["group"]], row
        assert row["measured"] > 0 if measurable[row["group"]] else row["note"].startswith("needs ")
        assert row["note"]
    ops = [row["measured"] for row in report["rows"] if row["group"] == "ops" and row["measured"]]
    assert all(1 <= ratio < 1.1 for ratio in ops)  # counts of instructions, not the clock
    assert {call["what"] for call in report["calls"]} >= {"ref(id)", "lookup(hash)", "alloc(1)", "alloc(64)", "k(id, layer)"}


def test_a_source_folder_does_not_get_in_the_way(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The row of a process of its own measures the installed package, whatever lies in the current folder."""
    import rows
    import run

    package = tmp_path / "clone/tinyllm_kv"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("raise ImportError('the source folder')")
    monkeypatch.chdir(package.parent)
    assert len(list(rows.create(run.Setting(run.QUICK, tmp_path, None)))) == 2


def test_rows_without_their_needs_say_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a trace, a package or a program a row is not measured, and names what it lacks."""
    import rows
    import run

    monkeypatch.setattr(rows.importlib.util, "find_spec", lambda name: None)
    monkeypatch.setattr(rows.shutil, "which", lambda name: None)
    lacking = {
        row.group: (row.verdict, row.note)
        for group in run.GROUPS
        if group.needs
        for row in run.rows_of(group, run.Setting(run.QUICK, tmp_path, None))
    }
    assert lacking["crc32c"] == ("not measured", "needs google-crc32c: pip install '.[bench]'")
    assert lacking["replay"] == ("not measured", "needs a trace: --trace FILE")
    assert {verdict for verdict, _ in lacking.values()} == {"not measured"}
    assert "C compiler" in lacking["ops"][1] and "valgrind" in lacking["ops"][1]


@pytest.mark.parametrize(
    ("measured", "at_most", "verdict"),
    [(1.5, False, "ok"), (1.49, False, "MISSED"), (1.5, True, "ok"), (1.51, True, "MISSED"), (None, True, "not measured")],
)
def test_verdicts(measured: float | None, at_most: bool, verdict: str) -> None:
    """A bound itself holds, whichever way it points."""
    import run

    assert run.Row("group", run.Target("what", "peer", 1.5, at_most), measured, "").verdict == verdict


@pytest.mark.parametrize(
    ("needs", "option", "status"),
    [(("trace",), ["--all"], 0), (("trace", "cc"), ["--all"], 1), (("cc",), ["--all"], 1), (("cc",), [], 0)],
)
def test_all_asks_for_every_row_but_those_of_a_trace(
    needs: tuple[str, ...], option: list[str], status: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With --all a row that is not measured fails the command, unless a trace is all that it lacks."""
    import rows
    import run

    monkeypatch.setattr(rows.shutil, "which", lambda name: None)
    group = run.Group("one", (run.Target("a row", "its peer", 2),), needs, lambda setting: iter([]))
    monkeypatch.setattr(run, "GROUPS", [group])
    assert run.main(["--only", "one", *option]) == status


def test_a_missed_row_is_the_exit_status(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """The command fails when a row misses, and shows which; --quick alone forgives."""
    import run

    target = run.Target("a row", "its peer", 2)
    monkeypatch.setattr(run, "GROUPS", [run.Group("one", (target,), (), lambda setting: iter([("a row", 1.9, "slow")]))])
    assert run.main(["--only", "one"]) == 1
    assert [line for line in capsys.readouterr().out.splitlines() if "MISSED" in line and "a row" in line]
    assert run.main(["--only", "one", "--quick"]) == 0

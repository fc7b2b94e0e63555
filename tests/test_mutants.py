"""32 wrong implementations of the pool die by the tests that are meant for them: ``pytest -m mutants``."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from mutants.general import Death, shuffled, verdict_on
from mutants.general import Mutant as Change
from mutants.run import NAMES, Court, Mutant, PatchError, Verdict, patched, read_mutant, table
from mutants.workshop import outcome

slow = pytest.mark.mutants


class Judged:
    """The verdicts of this session, each mutant judged once."""

    def __init__(self, folder: Path) -> None:
        self.court = Court(folder)
        self.verdicts: dict[str, Verdict] = {}

    def verdict(self, name: str) -> Verdict:
        if name not in self.verdicts:
            self.verdicts[name] = self.court.judge(read_mutant(name))
        return self.verdicts[name]


@pytest.fixture(scope="module")
def judged(tmp_path_factory: pytest.TempPathFactory, pytestconfig: pytest.Config) -> Iterator[Judged]:
    result = Judged(tmp_path_factory.mktemp("mutants") / "workshop")
    yield result
    reporter = pytestconfig.pluginmanager.get_plugin("terminalreporter")
    if reporter:
        reporter.write_line("\n" + table(list(result.verdicts.values())))


@pytest.mark.parametrize("name", NAMES)
def test_the_patch_applies(name: str) -> None:
    """Each mutant changes what it says it changes: a patch out of date is a failure."""
    assert patched(read_mutant(name))


def test_there_is_a_patch_for_every_name_and_no_other() -> None:
    """The folder holds the 32 patches."""
    assert sorted(path.stem for path in (Path(__file__).parent / "mutants").glob("*.patch")) == sorted(NAMES)
    assert len(NAMES) == 32


@pytest.mark.parametrize("old", ["no such text", "tl_kv_pool *p"], ids=["no place", "several places"])
def test_a_patch_without_one_place_is_refused(old: str) -> None:
    """A patch whose old text is gone, or stands more than once, is not applied."""
    with pytest.raises(PatchError, match="the old text stands"):
        patched(Mutant("x", "", (), (("csrc/runtime/kv_pool.c", old, ""),)))


def test_editing_a_line_changes_the_general_sample_by_its_mutants_alone() -> None:
    """The others keep their order, identical ones too; another seed is another order."""

    def order(first: str, seed: int = 1) -> list[tuple[str, str, str]]:
        lines = [first, "return a;", *(f"x{n};" for n in range(40)), "return a;"]
        found = (Change("f.c", at, line, line[:cut]) for at, line in enumerate(lines) for cut in range(len(line)))
        return [mutant.key for mutant in shuffled(found, seed) if mutant.old != first]

    assert order("a = 1;") == order("") == order("something(longer);")
    assert len(order("")) == sum(len(f"x{n};") for n in range(40)) + 2 * len("return a;")
    assert order("", 2) != order("") and sorted(order("", 2)) == sorted(order(""))


@pytest.mark.parametrize(
    ("dead", "endless", "alive", "count", "explained", "status"),
    [
        (18, 1, 1, 20, True, 0),
        (18, 1, 1, 20, False, 1),  # a survivor that nobody has explained
        (18, 1, 1, 21, True, 1),  # fewer than asked for
        (17, 1, 2, 20, True, 1),  # less than 95 % killed
        (0, 0, 0, 1, True, 1),
    ],
)
def test_the_verdict_on_a_general_sample(
    dead: int, endless: int, alive: int, count: int, explained: bool, status: int, capsys: pytest.CaptureFixture[str]
) -> None:
    """It is good with enough mutants, 95 % of them dead and the others explained; endless ones are counted apart."""
    deaths = [Death("test", "failed")] * dead + [Death("test", "timed out")] * endless + [None] * alive
    verdicts = {Change("f.c", n, "a", str(n)): death for n, death in enumerate(deaths)}
    reasons = {mutant.key: "a reason" for mutant in verdicts} if explained else {}
    assert verdict_on(verdicts, count, reasons) == status
    assert f"{dead} by a failure and {endless} by not ending twice; {alive} alive" in capsys.readouterr().out


def test_a_test_out_of_time_is_run_once_more(tmp_path: Path) -> None:
    """What ends the second time has its own outcome, what does not has timed out."""
    program, marker = tmp_path / "program", tmp_path / "ran"
    program.write_text(f'#!/bin/sh\n[ -e {marker} ] && exit "$1"\n: >{marker}\nexec sleep 60\n')
    program.chmod(0o755)
    for status, expected in (("0", "passed"), ("3", "failed")):
        marker.unlink(missing_ok=True)
        assert outcome(program, [status], seconds=1) == expected
    program.write_text("#!/bin/sh\nexec sleep 60\n")
    assert outcome(program, seconds=0.1) == "timed out"


@slow
def test_a_right_implementation_survives(judged: Judged) -> None:
    """A change that is no fault kills nothing: it is the faults that the cases find."""
    harmless = Mutant("x", "", (), (("csrc/runtime/kv_pool.c", "if (hash == 0) return", "if (!hash) return"),))
    verdict = judged.court.judge(harmless)
    assert not verdict.pool and not verdict.learner and not verdict.by_named


@slow
@pytest.mark.parametrize("name", NAMES)
def test_a_mutant_dies_by_the_test_that_is_meant_for_it(name: str, judged: Judged) -> None:
    """One of the tests that the patch names kills the mutant."""
    verdict = judged.verdict(name)
    assert verdict.by_named, f"{verdict.mutant.fault}: killed by {verdict.pool or 'none'}"


@slow
def test_the_learner_tests_alone_kill_at_least_30(judged: Judged) -> None:
    """The eight learner tests kill 30 of the 32, and a revived block that can be evicted (s11) among them."""
    killed = {name for name in NAMES if judged.verdict(name).learner}
    assert "s11" in killed
    assert len(killed) >= 30, f"alive: {sorted(set(NAMES) - killed)}"

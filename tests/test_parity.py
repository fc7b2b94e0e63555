"""The parity suite kv.wire.v1: the golden files, and the two drivers that answer it byte for byte."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from parity import driver, transcription
from tinyllm_kv.pytest_plugin import SANITIZE, CBuild, clean_environment

ROOT = Path(__file__).resolve().parents[1]
PARITY = ROOT / "tests/parity"
SUITE: list[dict[str, Any]] = json.loads((ROOT / "fixtures/kv_wire_v1.json").read_text())
LINES = "".join(json.dumps(case) + "\n" for case in SUITE)

# The worked example as the format's description prints it.
WORKED = bytes.fromhex("""
    54 4c 4b 56 01 00 01 00 01 00 00 00 02 00 00 00
    01 00 00 00 01 00 00 00 02 00 00 00
    66 93 7b 02 c1 b0 1a a9 02 00 00 00
    00 3c 00 40 00 42 00 44
    00 38 00 bc 00 00 00 34
    1c 54 0b 4f
""")
EMPTY = {"B": 16, "L": 2, "H": 2, "D": 4, "tokens": [], "values": []}


# ---- the golden files --------------------------------------------------------------------------


def test_golden_files_are_those_of_the_transcription() -> None:
    """The files in fixtures/ are, byte for byte, what the transcription makes."""
    for path, content in transcription.golden_files().items():
        assert path.read_bytes() == content, (
            f"{path.name}: python tests/parity/transcription.py makes it anew"
        )


def test_check_notices_a_difference(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`--check` passes over files just written and fails over a changed or missing one."""
    monkeypatch.setattr(transcription, "FIXTURES", tmp_path / "fixtures")
    assert transcription.main([]) == 0
    assert transcription.main(["--check"]) == 0
    suite = tmp_path / "fixtures/kv_wire_v1.json"
    suite.write_bytes(suite.read_bytes().replace(b"1c540b4f", b"1c540b4e"))
    assert transcription.main(["--check"]) == 1
    assert transcription.main([]) == 0
    (tmp_path / "fixtures/worked_envelope.bin").unlink()
    assert transcription.main(["--check"]) == 1
    assert transcription.main(["--chekc"]) == 2


def test_worked_envelope_is_the_one_worked_by_hand() -> None:
    """The golden worked envelope, in both files, is the one that the format's description prints."""
    assert (ROOT / "fixtures/worked_envelope.bin").read_bytes() == WORKED
    assert bytes.fromhex(SUITE[0]["hex"]) == WORKED
    assert SUITE[0]["tokens"] == [1, 2]


def test_transcription_against_published_values() -> None:
    """CRC-32C and FNV-1a have their published values, the chained hashes those of the worked example."""
    assert transcription.crc32c(b"123456789") == 0xE3069283
    assert transcription.crc32c(bytes(32)) == 0x8A9136AA  # RFC 3720, B.4
    assert transcription.fnv1a64(b"") == 0xCBF29CE484222325
    assert transcription.fnv1a64(b"foobar") == 0x85944171F73967E8
    first = transcription.block_hash(0, [1, 2])
    assert (first, transcription.block_hash(first, [3, 4])) == (0xA91AB0C1027B9366, 0x03DF829571605C60)


def test_suite_covers_what_it_is_for() -> None:
    """The suite has partial tails, exact multiples, no tokens, several layers and heads, B from 2 to 16."""
    assert len(SUITE) >= 6
    assert {2, 16} <= {case["B"] for case in SUITE} <= set(range(2, 17))
    tails = {len(case["tokens"]) % case["B"] for case in SUITE if len(case["tokens"]) > case["B"]}
    assert 0 in tails and len(tails) > 2
    assert any(case["L"] > 1 and case["H"] > 1 and len(case["tokens"]) > case["B"] for case in SUITE)
    assert {0, 1} <= {len(case["tokens"]) for case in SUITE}
    assert any(2**32 - 1 in case["tokens"] for case in SUITE)


# ---- the drivers -------------------------------------------------------------------------------


@pytest.fixture(scope="session")
def c_driver(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return driver.c as a program, under sanitizers, strict warnings on."""
    flags = ["-std=c11", "-pedantic", "-Wall", "-Wextra", "-Werror", *SANITIZE, f"-I{ROOT / 'include'}"]
    units = sorted([*ROOT.glob("csrc/runtime/*.c"), *ROOT.glob("csrc/ds/*.c")])
    return CBuild(tmp_path_factory.mktemp("parity"), flags, units).program(PARITY / "driver.c")


class Driver:
    """A driver of the suite: how it is started."""

    def __init__(self, command: list[str], environment: dict[str, str] | None) -> None:
        self.command = command
        self.environment = environment

    def start(self) -> subprocess.Popen[str]:
        pipe = subprocess.PIPE
        return subprocess.Popen(
            self.command, stdin=pipe, stdout=pipe, stderr=pipe, text=True, env=self.environment
        )

    def run(self, lines: str) -> tuple[int, str, str]:
        """Return the exit status, the output and the errors for these lines."""
        with self.start() as process:
            out, err = process.communicate(lines, timeout=60)
        return process.returncode, out, err


@pytest.fixture(params=["c", "python"])
def a_driver(request: pytest.FixtureRequest) -> Driver:
    """Return each of the two drivers."""
    if request.param == "c":
        return Driver([str(request.getfixturevalue("c_driver"))], clean_environment())
    return Driver([sys.executable, str(PARITY / "driver.py")], None)


def test_driver_answers_the_suite(a_driver: Driver) -> None:
    """A driver answers each case with its golden envelope, a line for a line."""
    status, out, err = a_driver.run(LINES)
    assert (status, err) == (0, "")
    answers = [json.loads(line) for line in out.splitlines()]
    assert answers == [{"hex": case["hex"]} for case in SUITE]


def test_driver_answers_before_the_next_line(a_driver: Driver) -> None:
    """An answer is there before the next line comes."""
    with a_driver.start() as process:
        assert process.stdin is not None and process.stdout is not None
        for case in SUITE[:2]:
            process.stdin.write(json.dumps(case) + "\n")
            process.stdin.flush()
            assert json.loads(process.stdout.readline()) == {"hex": case["hex"]}
        process.stdin.close()
        assert process.stdout.read() == ""
        assert process.wait(timeout=60) == 0


def test_driver_no_tokens(a_driver: Driver) -> None:
    """Empty tokens are answered with the 32 bytes of an envelope of no blocks."""
    status, out, _ = a_driver.run(json.dumps(EMPTY))
    assert status == 0
    assert json.loads(out)["hex"] == transcription.envelope(EMPTY).hex()
    assert len(json.loads(out)["hex"]) == 2 * 32


def test_driver_no_lines(a_driver: Driver) -> None:
    """Nothing in, nothing out."""
    assert a_driver.run("") == (0, "", "")


def test_driver_reads_json_however_it_is_written(a_driver: Driver) -> None:
    """Order, spaces and members that the suite does not have make no difference."""
    line = (
        ' \t{ "note" : {"a\\"}" : [ null , true, -1.5e3, "]" , {}, [] ] },"values":[15360,16384 , 14336,'
        ' 48128,16896,17408,0,13312],"D":2 ,"tokens" : [ 1 ,2 ] ,"H":1, "hex":"","L": 1,"B":2 } \r'
    )
    status, out, err = a_driver.run(line + "\n")
    assert (status, err) == (0, "")
    assert bytes.fromhex(json.loads(out)["hex"]) == WORKED


def with_(**changes: Any) -> str:
    """Return the worked case with members changed, or left out with None, as a line."""
    case = {key: SUITE[0][key] for key in EMPTY} | changes
    return json.dumps({key: value for key, value in case.items() if value is not None})


BAD_LINES = {
    "nothing": "",
    "no JSON": "B=2",
    "cut short": with_()[:-1],
    "cut short in a string": '{"B',
    "cut short in an escape": '{"a\\',
    "two cases": with_() + with_(),
    "a list": "[1]",
    "a comma too many": with_().replace("]", ",]"),
    "a NUL": with_() + "\0",
    "deep": '{"a":' + "[" * 100_000,
    "B missing": with_(B=None),
    "values missing": with_(values=None),
    "tokens no list": with_(tokens=1),
    "B 0": with_(B=0),
    "D 0": with_(D=0, values=[]),
    "L negative": with_(L=-1),
    "H a float": with_(H=1.0),
    "H a string": with_(H="1"),
    "H true": with_(H=True),
    "B 2^32": with_(B=2**32),
    "B 2^64 + 2": with_(B=2**64 + 2),
    "B with a leading zero": with_().replace('"B": 2', '"B": 02'),
    "B with an exponent": with_().replace('"B": 2', '"B": 2e0'),
    "B twice": with_().replace('"B": 2', '"B": 2, "B": 2'),
    "a token of 2^32": with_(tokens=[1, 2**32]),
    "a token of -1": with_(tokens=[1, -1]),
    "a token of 1.5": with_(tokens=[1, 1.5]),
    "a value of 2^16": with_(values=[65536] * 8),
    "a value too few": with_(values=[0] * 7),
    "a value too many": with_(values=[0] * 9),
    "values without tokens": with_(tokens=[]),
    "a size that wraps": with_(L=2**31, H=2**31, D=2**31, values=[]),
    "a pool too large": with_(B=2**32 - 1, L=2**32 - 1, H=2**32 - 1, D=2**32 - 1, tokens=[], values=[]),
}


@pytest.mark.parametrize("name", BAD_LINES)
def test_driver_bad_line(name: str, a_driver: Driver) -> None:
    """A bad line ends a driver with status 1 and one line that names it; those before are answered."""
    status, out, err = a_driver.run(f"{with_()}\n{BAD_LINES[name]}\n{with_()}\n")
    assert status == 1, err
    assert err.startswith("driver: line 2: ") and err.count("\n") == 1
    assert len(err) > len("driver: line 2: \n")
    assert len(out.splitlines()) == 1


# ---- beyond the suite --------------------------------------------------------------------------


@st.composite
def cases(draw: st.DrawFn) -> dict[str, Any]:
    """Draw a case of up to three blocks and a tail, of any f16 pattern and any token id."""
    B, L, H, D = (draw(st.integers(1, most)) for most in (17, 3, 3, 5))
    tokens = draw(st.lists(st.integers(0, 2**32 - 1) | st.integers(0, 2), max_size=3 * B + 1))
    seed, a_value = draw(st.integers(0, 2**64 - 1)), draw(st.none() | st.sampled_from(transcription.UNUSUAL))
    n = len(tokens) * L * 2 * H * D
    values = transcription.numbers(seed, n, 16) if a_value is None else [a_value] * n
    return {"B": B, "L": L, "H": H, "D": D, "tokens": tokens, "values": values}


@pytest.fixture(scope="session")
def c_answers(c_driver: Path) -> Iterator[subprocess.Popen[str]]:
    """Return a running driver.c; at the end it must leave without a word from the sanitizers."""
    with Driver([str(c_driver)], clean_environment()).start() as process:
        yield process
        out, err = process.communicate(timeout=60)
        assert (process.returncode, out, err) == (0, "", "")


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture])
@example(case=EMPTY)
@given(case=cases())
def test_random_cases(case: dict[str, Any], c_answers: subprocess.Popen[str]) -> None:
    """Both drivers answer random cases with the transcription's envelope."""
    expected = {"hex": transcription.envelope(case).hex()}
    line = json.dumps(case)
    assert c_answers.stdin is not None and c_answers.stdout is not None
    c_answers.stdin.write(line + "\n")
    c_answers.stdin.flush()
    assert json.loads(c_answers.stdout.readline()) == expected
    assert json.loads(driver.answer(line)) == expected

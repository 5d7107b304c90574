"""What is left when a row of a bench fails: the others, its error, and what `--resume` measures."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec
import pytest

from tests.bench import __main__ as command
from tests.bench import machine, quick
from tests.bench.figures import Figure, Scale
from tests.bench.quick import row
from tests.controlplane.api import ApiError

SLOW = ApiError("DELETE", "/api/v1/namespaces/ours/pods", 504, b'{"message": "too slow\\nlog"}')

SMALL = row("small trees: rate", "ms", "lower", [1.0], "")


class Families:
    """Families of rows of `make bench-quick`; some of them fail."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.out = folder / "figures.json"
        self.measured: list[str] = []
        self.failing: tuple[str, ...] = ()
        self.value = 1.0
        self._monkeypatch = monkeypatch
        monkeypatch.setattr(machine, "speed", iter(range(1, 100)).__next__)
        monkeypatch.setattr(
            quick, "FAMILIES", {name: self._rows_of(name) for name in ("small", "large", "cpu")}
        )

    def run(self, *arguments: str, bench: str = "quick") -> int:
        """Run the command, and return its exit code."""
        self.measured = []
        argv = ["bench", *bench.split(), "--out", str(self.out), *arguments]
        self._monkeypatch.setattr("sys.argv", argv)
        return command.main()

    def values(self) -> dict[str, float]:
        """Return what is in the file."""
        return {figure.what: figure.median for figure in command.read(self.out)}

    def _rows_of(self, name: str):
        def rows(scale: Scale) -> Iterator[Sequence[Figure]]:
            self.measured.append(name)
            yield [row(f"{name} trees: rate", "ms", "lower", [self.value], "")]
            if name in self.failing:
                raise SLOW
            yield [row(f"{name} trees: p99", "ms", "lower", [self.value], "")]

        return rows


@pytest.fixture
def families(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Families:
    return Families(tmp_path, monkeypatch)


def test_other_rows_stay(families: Families, capsys: pytest.CaptureFixture[str]) -> None:
    """A failed row is shown with its error beside those that were measured before and after it."""
    families.failing = ("large",)
    assert families.run() == 1
    assert families.measured == ["small", "large", "cpu"]
    assert [*families.values()] == [
        f"{n} trees: {w}" for n in ("small", "cpu") for w in ("rate", "p99")
    ]
    printed = capsys.readouterr()
    shown = [line.split("  ") for line in printed.out.splitlines()]
    lines = {cells[0]: cells[-1].strip() for cells in shown}
    error = "failed: ApiError: DELETE /api/v1/namespaces/ours/pods: 504 : too slow"
    assert lines["large"] == error
    assert lines["cpu trees: p99"] == "4 to 5", "the speed of the machine before and after it"
    assert f"quick: large: {error}" in printed.err.splitlines()
    assert "Traceback" in printed.err


def test_resume_measures_what_is_missing(families: Families) -> None:
    """Rows of families that were finished are neither measured nor changed."""
    families.failing = ("large",)
    families.run()
    families.failing, families.value = (), 2.0
    assert families.run("--resume") == 0
    assert families.measured == ["large"]
    assert families.values() == {
        "small trees: rate": 1.0, "small trees: p99": 1.0, "cpu trees: rate": 1.0,
        "cpu trees: p99": 1.0, "large trees: rate": 2.0, "large trees: p99": 2.0,
    }  # fmt: skip
    assert families.run("--resume") == 0
    assert families.measured == []


def test_older_rows_do_not_count(families: Families) -> None:
    """What an earlier run measured is not taken for a row of the run that failed."""
    families.run()
    families.failing = ("small", "large", "cpu")
    assert families.run("--only", "large|cpu") == 1
    assert [*families.values()] == ["small trees: rate", "small trees: p99"]
    families.failing = ()
    families.run("--resume")
    assert families.measured == ["large", "cpu"]


def test_other_benches_go_on(families: Families, monkeypatch: pytest.MonkeyPatch) -> None:
    """A bench that fails leaves the figures that it has given, and the next one runs; it goes on with what is missing."""
    asked = []

    def cases(scale: Scale) -> Iterator[list[Figure]]:
        for case in ("a", "b"):
            if scale.wants("verbs", case):
                asked.append(case)
                if case in families.failing:
                    raise SLOW
                yield [msgspec.structs.replace(SMALL, bench="verbs", what=f"{case}: p50")]

    monkeypatch.setattr("tests.bench.verbs.run", cases)
    families.failing = ("b",)
    assert families.run(bench="verbs quick") == 1
    assert [*families.values()][:2] == ["a: p50", "small trees: rate"]
    assert families.measured == ["small", "large", "cpu"]
    families.failing = ()
    assert families.run("--resume", bench="verbs quick") == 0
    assert asked == ["a", "b", "b"]
    assert [*families.values()][-1] == "b: p50"
    assert families.measured == []


def test_each_row_has_the_speed_of_the_machine(families: Families) -> None:
    """It is measured before and after a family, also after one that failed."""
    families.failing = ("large",)
    families.run()
    speeds = {figure.what: figure.machine_speed for figure in command.read(families.out)}
    assert speeds["small trees: rate"] == speeds["small trees: p99"] == (1, 2)
    assert speeds["cpu trees: rate"] == (4, 5)


def test_finished_rows_are_recorded(families: Families, monkeypatch: pytest.MonkeyPatch) -> None:
    recorded: list[Figure] = []
    monkeypatch.setattr(command, "keep", lambda figures, *_, **__: recorded.extend(figures))
    families.failing = ("large",)
    assert families.run("--record") == 1
    assert [figure.family for figure in recorded] == ["small", "small", "cpu", "cpu"]

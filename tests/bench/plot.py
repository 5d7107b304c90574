"""Plots of pods bound over time, one panel per case, one line per run."""

from __future__ import annotations

from pathlib import Path

import msgspec

from tests.bench.race import RUNS, Run

COLOURS = {
    "ours": "tab:blue",
    "ungated": "tab:cyan",
    "native": "tab:red",
    "ordinary": "tab:gray",
    "writes": "tab:olive",
}
COLUMNS = 3


class _Kept(msgspec.Struct):
    bench: str
    case: str
    runs: dict[str, list[Run]]


def plot(bench: str, cases: set[str], file: Path) -> bool:
    """Draw the kept runs of a benchmark's cases into one PNG; False when there are none."""
    found = [
        msgspec.json.decode(path.read_bytes(), type=_Kept) for path in sorted(RUNS.glob("*.json"))
    ]
    kept = [k for k in found if k.bench == bench and k.case in cases]
    if not kept:
        return False
    import matplotlib as mpl

    mpl.use("agg")
    from matplotlib import pyplot as plt

    rows = -(-len(kept) // COLUMNS)
    figure, axes = plt.subplots(
        rows, COLUMNS, figsize=(5.2 * COLUMNS, 3.4 * rows), squeeze=False, layout="constrained"
    )
    for axis in axes.flat[len(kept) :]:
        axis.set_axis_off()
    for axis, one in zip(axes.flat, kept, strict=False):
        for side, runs in one.runs.items():
            for number, run in enumerate(runs):
                label = None if number else side
                colour = COLOURS[side]
                counts = range(1, len(run.bound_s) + 1)
                axis.step(run.bound_s, counts, color=colour, label=label, where="post", lw=1)
                axis.axvline(run.created_s, color=colour, ls=":", lw=0.7)
        axis.set_title(one.case, fontsize=8)
        axis.set_xlabel("seconds after the first create (dotted: last create)", fontsize=7)
        axis.set_ylabel("pods bound", fontsize=7)
        axis.tick_params(labelsize=7)
        axis.legend(fontsize=7)
    file.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(file, dpi=80)
    plt.close(figure)
    return True

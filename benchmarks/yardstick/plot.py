"""The plot: what a step costs over the length of its session, for each engine."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

Curve = Sequence[tuple[int, float]]


def plot_curves(curves: dict[str, Curve], path: Path) -> None:
    """Write an SVG: milliseconds a step of one session, over K, both axes logarithmic."""
    import matplotlib as mpl

    mpl.use("svg")
    mpl.rcParams["svg.hashsalt"] = "celery-agents"
    mpl.rcParams["svg.fonttype"] = "none"
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(figsize=(9, 5.5))
    marks = "osD^vP*X<>hp"
    for number, (title, curve) in enumerate(curves.items()):
        own = title.startswith("celery-agents")
        axes.plot(
            [steps for steps, _ in curve],
            [value for _, value in curve],
            marker=marks[number % len(marks)],
            linewidth=2.4 if own else 1.2,
            linestyle="-" if own else "--",
            label=title,
        )
    axes.set_xscale("log")
    axes.set_yscale("log")
    ticks = sorted({steps for curve in curves.values() for steps, _ in curve})
    axes.set_xticks(ticks, [str(steps) for steps in ticks])
    axes.set_xlabel("steps of the session (K)")
    axes.set_ylabel("ms a step, one session at a time")
    axes.grid(True, which="both", alpha=0.25)
    axes.legend(fontsize=8, loc="upper left")
    figure.tight_layout()
    figure.savefig(path, format="svg", metadata={"Date": None})
    plt.close(figure)

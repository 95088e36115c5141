"""The picture: both loss curves, where the run was killed, and how far apart they are."""

from collections.abc import Sequence
from pathlib import Path

from matplotlib.figure import Figure

from examples.demo.records import Step

__all__ = ["draw"]

COLOURS = ("#d1495b", "#edae49", "#00798c", "#66a182")  # one an attempt
GREY = "#b8bcc4"


def draw(target: Path, whole: Sequence[Step], broken: Sequence[Step], tolerance: float) -> None:
    """Write a PNG of the losses of the uninterrupted run and of each attempt of the interrupted one."""
    figure = Figure(figsize=(10, 6.6), dpi=130, layout="constrained")
    upper, lower = figure.subplots(2, 1, sharex=True, height_ratios=(3.2, 1))
    ranks = " and ".join(str(number) for number in sorted({step.ranks for step in whole}))
    upper.plot(
        [step.step for step in whole],
        [step.loss for step in whole],
        color=GREY,
        linewidth=7,
        solid_capstyle="round",
        label=f"uninterrupted, {ranks} ranks",
    )
    attempts = [
        [step for step in broken if step.attempt == attempt] for attempt in sorted({step.attempt for step in broken})
    ]
    expected = {step.step: step.loss for step in whole}
    for number, (steps, colour) in enumerate(zip(attempts, COLOURS, strict=False)):
        first, last = steps[0], steps[-1]
        name = f"{first.ranks} rank{'s' if first.ranks > 1 else ''}, steps {first.step} to {last.step}"
        numbers = [step.step for step in steps]
        upper.plot(numbers, [step.loss for step in steps], color=colour, linewidth=1.6, marker=".", ms=5, label=name)
        gaps = [abs(step.loss - expected.get(step.step, float("nan"))) for step in steps]
        lower.plot(numbers, gaps, color=colour, linewidth=1.6, marker=".", ms=5)
        if number + 1 < len(attempts):
            back = attempts[number + 1][0].step
            for axes in (upper, lower):
                axes.axvspan(back - 0.5, last.step + 0.5, color="black", alpha=0.05, linewidth=0)
                axes.axvline(last.step + 0.5, color="black", linewidth=1, linestyle=(0, (4, 3)))
            upper.annotate(
                f"SIGKILL after step {last.step}\nsteps {back} to {last.step} trained again",
                xy=(last.step + 0.5, 0.72),
                xycoords=("data", "axes fraction"),
                xytext=(6, 0),
                textcoords="offset points",
                fontsize=9.5,
                va="center",
            )
    apart = max(abs(step.loss - expected.get(step.step, step.loss)) for step in broken)
    title = f"Killed twice, continued with other numbers of ranks (largest difference in loss: {apart:.1g})"
    upper.set_title(title, fontsize=13, loc="left", pad=10)
    upper.set_ylabel("training loss (nats per token)")
    upper.legend(frameon=False, loc="upper right", fontsize=10)
    lower.axhline(tolerance, color=COLOURS[0], linewidth=1, linestyle=":")
    lower.annotate(
        f"allowed: {tolerance:g}",
        xy=(1, tolerance),
        xytext=(0, 3),
        textcoords="offset points",
        fontsize=9,
        color=COLOURS[0],
    )
    lower.set_yscale("symlog", linthresh=1e-8)
    lower.set_ylim(-2e-9, max(tolerance, apart) * 30)
    lower.set_yticks([0, 1e-8, 1e-6, 1e-4])
    lower.set_ylabel("|difference|")
    lower.set_xlabel("optimizer step (12 windows of 128 tokens)")
    for axes in (upper, lower):
        axes.spines[["top", "right"]].set_visible(False)
        axes.grid(axis="y", color="black", alpha=0.08, linewidth=0.8)
    lower.set_xlim(0, max(expected) + 1)
    figure.savefig(target)

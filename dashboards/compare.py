"""The compare board: two runs side by side, possibly from different times."""

from __future__ import annotations

from dashboards import variables
from dashboards.board import Board
from dashboards.links import OF_RUN
from dashboards.panels import FULL_WIDTH, LOW_ROWS, Chart, Figure, Listing, Queries
from dashboards.promql import PROJECTS, RUN, increase, named, named_seen, quantile, rate, seen

PAIR = 'run=~"$run|$other"'
KNOWN = f'{PAIR},precision!=""'
SKIPPED = f'{PAIR},outcome="skipped"'


def mean(histogram: str) -> str:
    return f"{increase(f'{histogram}_sum', PAIR)} / ({increase(f'{histogram}_count', PAIR)} > 0)"


def gauge(metric: str) -> Queries:
    return [(named(f"{metric}{{{PAIR}}}"), RUN)]


SUMMARY = (
    Listing(
        "The two runs",
        "The last step of both, with software and device.",
        "none",
        "Last step",
        [
            (
                f"max by (run) ({seen('ammeter_run_step', PAIR)}) * on (run) group_right () "
                "max by (run, name, project, precision, torch_version, device_model) "
                f"({seen('ammeter_run_info', KNOWN)})",
                "",
            )
        ],
        ("name", "project", "precision", "torch_version", "device_model", "run"),
        width=FULL_WIDTH,
        height=LOW_ROWS + 1,
        links={"name": OF_RUN, "run": OF_RUN},
    ),
    Figure(
        "Step time",
        "Mean wall time of a step in the displayed time.",
        "s",
        [(named_seen(mean("ammeter_step_duration_seconds")), RUN)],
        width=8,
    ),
    Figure(
        "Training loss",
        "The last loss of each, unscaled. The collector's page compares losses at equal steps.",
        "short",
        [(named_seen(seen("ammeter_last_loss", PAIR)), RUN)],
        width=8,
    ),
    Figure(
        "Validation loss",
        "The last val_loss of run.log of each.",
        "short",
        [(named_seen(seen("ammeter_last_validation_loss", PAIR)), RUN)],
        missing="neither run logs val_loss",
        width=8,
    ),
    Figure(
        "Speed against the baseline",
        "For a run that names the other as its baseline, at the steps of both, without warm-up and end.",
        "none",
        [(named_seen(seen("ammeter_speedup_vs_baseline_ratio", PAIR)), RUN)],
        missing="neither run names a baseline that is like it",
        width=8,
        limits=((None, "red"), (1, "green")),
    ),
    Figure(
        "Memory against the baseline",
        "Peak of allocated device memory over that of the baseline. Not measured on a CPU.",
        "percentunit",
        [(named_seen(seen("ammeter_memory_vs_baseline_ratio", PAIR)), RUN)],
        missing="no device memory to compare",
        width=8,
        limits=((None, "green"), (1, "orange")),
        change=True,
    ),
    Figure(
        "Validation against the baseline",
        "Share by which the last validation is worse than the baseline's at the same step; below 0 it is better.",
        "percentunit",
        [(named_seen(seen("ammeter_validation_delta_ratio", PAIR)), RUN)],
        missing="no validation to compare",
        width=8,
        limits=((None, "green"), (0, "orange")),
        change=True,
    ),
)

CURVES = (
    Chart(
        "Loss",
        "Training loss of the last step, unscaled, over time. The collector's page compares at equal steps.",
        "short",
        gauge("ammeter_last_loss"),
    ),
    Chart("Validation", "The last val_loss of run.log.", "short", gauge("ammeter_last_validation_loss")),
    Chart(
        "Median step time",
        "Median wall time of a step. A constant difference means another precision or another machine.",
        "s",
        [(named(quantile("0.5", "ammeter_step_duration_seconds", PAIR)), RUN)],
    ),
    Chart(
        "Samples per second",
        "Training samples per second of all ranks.",
        "short",
        [(named(rate("ammeter_samples_total", PAIR)), RUN)],
    ),
    Chart(
        "Gradient norm",
        "L2 norm of all gradients in the last step, unscaled. The curves of two precisions of one training coincide.",
        "sci",
        gauge("ammeter_last_grad_norm"),
        log=10,
    ),
    Chart(
        "Steps skipped",
        "Optimizer steps per minute that GradScaler skipped.",
        "cpm",
        [(named(rate("ammeter_steps_total", SKIPPED, per_minute=True)), RUN)],
    ),
    Chart(
        "Loss scale",
        "The scale of runs with loss scaling. float32 and bfloat16 need none.",
        "none",
        gauge("ammeter_scaler_scale"),
        log=2,
    ),
    Chart(
        "Work in low precision",
        "Share of the eligible FLOPs below autocast that ran in float16 or bfloat16.",
        "percentunit",
        gauge("ammeter_low_precision_flops_ratio"),
    ),
    Chart(
        "Underflow",
        "Share of gradient elements that are zero or subnormal in float16 while scaled.",
        "percentunit",
        gauge("ammeter_grad_underflow_ratio"),
    ),
    Chart(
        "Time inside Ammeter",
        "Share of each run's time that was spent inside Ammeter.",
        "percentunit",
        gauge("ammeter_agent_overhead_ratio"),
        limits=((None, "green"), (0.01, "orange")),
        soft_max=0.02,
    ),
)

BOARD = Board(
    name="compare",
    title="Ammeter / Compare two runs",
    description="Two runs side by side: speed, loss, validation, gradients, loss scale.",
    variables=(variables.compared(), variables.other()),
    incidents=f"{PROJECTS},{PAIR}",
    rows=(("", SUMMARY), ("Over time", CURVES)),
)

"""The compare board: two runs side by side, possibly from different times."""

from __future__ import annotations

from dashboards.board import Board
from dashboards.panels import LOW, WHOLE, Chart, Figure, Listing, Queries, variable
from dashboards.promql import RUN, increase, named, named_seen, quantile, rate, seen

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
        "The last step of both, with what they run on.",
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
        width=WHOLE,
        height=LOW,
    ),
    Figure(
        "Step time",
        "Mean wall time of a step in the time shown.",
        "s",
        [(named_seen(mean("ammeter_step_duration_seconds")), RUN)],
        width=8,
    ),
    Figure(
        "Training loss",
        "The last loss of each, unscaled. What they lost at equal steps stands on the collector's page.",
        "short",
        [(named_seen(seen("ammeter_last_loss", PAIR)), RUN)],
        width=8,
    ),
    Figure(
        "Validation loss",
        "The last validation loss of each, as run.log said it.",
        "short",
        [(named_seen(seen("ammeter_last_validation_loss", PAIR)), RUN)],
        missing="neither logs val_loss",
        width=8,
    ),
    Figure(
        "Times as fast as its baseline",
        "Of a run that names the other as its baseline: at the steps of both, so that warm-up and ends do not count.",
        "none",
        [(named_seen(seen("ammeter_speedup_vs_baseline_ratio", PAIR)), RUN)],
        missing="neither names a baseline",
        width=8,
    ),
    Figure(
        "Memory beside its baseline",
        "Peak of the device memory in tensors over that of the baseline. On a CPU nobody counts it.",
        "percentunit",
        [(named_seen(seen("ammeter_memory_vs_baseline_ratio", PAIR)), RUN)],
        missing="no device memory to compare",
        width=8,
    ),
    Figure(
        "Validation beside its baseline",
        "By which share the last validation is worse than the baseline's at the same step; below 0 it is better.",
        "percentunit",
        [(named_seen(seen("ammeter_validation_delta_ratio", PAIR)), RUN)],
        missing="no validation to compare",
        width=8,
    ),
)

COURSES = (
    Chart(
        "Loss",
        "Training loss of the last step, unscaled, over the time of day. At equal steps: the collector's page.",
        "short",
        gauge("ammeter_last_loss"),
    ),
    Chart("Validation", "Validation loss that run.log said last.", "short", gauge("ammeter_last_validation_loss")),
    Chart(
        "Median step time",
        "Median of the wall time of a step. Apart by a constant: another precision or another machine.",
        "s",
        [(named(quantile("0.5", "ammeter_step_duration_seconds", PAIR)), RUN)],
    ),
    Chart(
        "Samples per second",
        "Samples trained on per second, of all ranks.",
        "short",
        [(named(rate("ammeter_samples_total", PAIR)), RUN)],
    ),
    Chart(
        "Gradient norm",
        "L2 norm of all gradients in the last step, unscaled. Two precisions of one training lie on each other.",
        "short",
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
        "Of those that scale their loss. float32 and bfloat16 need none.",
        "short",
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
    ),
)

BOARD = Board(
    name="compare",
    title="Ammeter / Compare two runs",
    description="Two runs side by side: speed, loss, validation, gradients, loss scale.",
    variables=(
        variable("project", "Project", "label_values(ammeter_run_info, project)"),
        variable("run", "Run", 'label_values(ammeter_run_info{project=~"$project"}, run)', several=False),
        variable("other", "Beside", 'label_values(ammeter_run_info{project=~"$project"}, run)', several=False),
    ),
    rows=(("", SUMMARY), ("Over time", COURSES)),
)

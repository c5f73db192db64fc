"""The debug board: panels for finding the cause of a fault in one run."""

from __future__ import annotations

from dashboards import variables
from dashboards.board import Board
from dashboards.links import INCIDENT_COLUMNS, INCIDENT_LINKS, OF_RUN
from dashboards.panels import FULL_WIDTH, WARN_FROM_ZERO, Chart, Distribution, Listing
from dashboards.promql import (
    PROJECTS,
    RUN,
    SELECTED_RUN,
    buckets_of_projects,
    median_and_p99,
    named,
    open_incidents_named,
    rate,
)

SKIPPED = f'{SELECTED_RUN},outcome="skipped"'
OPERATORS = f"ammeter_operator_seconds{{{SELECTED_RUN}}}"
OPERATOR_SHARES = f"{OPERATORS} / on (run) group_left () (sum by (run) ({OPERATORS}) > 0)"

ROWS = (
    (
        "Loss scale and skipped steps",
        (
            Chart(
                "Loss scale",
                "Halves when a gradient overflows, doubles after growth_interval good steps. Continued halving is a "
                "collapse; a sawtooth faster than growth_interval is an overflow storm.",
                "none",
                [(named(f"ammeter_scaler_scale{{{SELECTED_RUN}}}"), RUN)],
                log=2,
            ),
            Chart(
                "Headroom",
                "Doublings of the scale until the largest gradient reaches 65504. Below 0 the next step "
                "overflows; above 10 the scale could be higher and save small gradients.",
                "short",
                [(named(f"ammeter_scaler_headroom_doublings{{{SELECTED_RUN}}}"), RUN)],
                limits=((None, "red"), (0, "green"), (10, "orange")),
            ),
            Chart(
                "Skipped steps",
                "Share of optimizer steps that GradScaler skipped. A few at the start are calibration; later, about "
                "one per growth_interval is normal.",
                "percentunit",
                [
                    (
                        named(
                            f"{rate('ammeter_steps_total', SKIPPED)} / ignoring(outcome) "
                            f"(sum without (outcome) ({rate('ammeter_steps_total', SELECTED_RUN)}) > 0)"
                        ),
                        RUN,
                    )
                ],
            ),
            Chart(
                "Scale changes",
                "Increases and decreases of the loss scale per minute.",
                "cpm",
                [
                    (
                        named(rate("ammeter_scaler_scale_changes_total", SELECTED_RUN, per_minute=True)),
                        RUN + " {{direction}}",
                    )
                ],
            ),
            Chart(
                "Skipped steps in a row",
                "Five in a row after the start open an incident that pages: each skipped step halves the scale.",
                "none",
                [(named(f"ammeter_consecutive_skipped_steps{{{SELECTED_RUN}}}"), RUN)],
                bars=True,
                limits=((None, "green"), (5, "red")),
            ),
            Chart(
                "Overflow events",
                "Steps per minute in which GradScaler found an Inf or NaN.",
                "cpm",
                [(named(rate("ammeter_overflow_events_total", SELECTED_RUN, per_minute=True)), RUN)],
            ),
        ),
    ),
    (
        "Values",
        (
            Chart(
                "Gradient norm",
                "L2 norm of all gradients in the last step, unscaled. Gaps are steps with a non-finite norm.",
                "sci",
                [(named(f"ammeter_last_grad_norm{{{SELECTED_RUN}}}"), RUN)],
                log=10,
            ),
            Chart(
                "Gradient norm, distribution",
                "Median and 99th percentile over all steps of the interval, which a scrape of the last step misses.",
                "sci",
                median_and_p99("ammeter_grad_norm", SELECTED_RUN),
                log=10,
            ),
            Distribution(
                "Gradient norm, heatmap",
                "Steps per second of the selected runs by the L2 norm of all gradients, unscaled.",
                "short",
                [(buckets_of_projects("ammeter_grad_norm", SELECTED_RUN), "{{le}}")],
                width=FULL_WIDTH,
            ),
            Chart(
                "Training loss",
                "Loss of the last step, unscaled. A gap while the run continues is a non-finite loss.",
                "short",
                [(named(f"ammeter_last_loss{{{SELECTED_RUN}}}"), RUN)],
            ),
            Chart(
                "Underflow",
                "Share of gradient elements that are zero or subnormal in float16 while scaled, when last sampled. "
                "Zeros of embeddings and ReLU are normal: watch the change, not the level.",
                "percentunit",
                [(named(f"ammeter_grad_underflow_ratio{{{SELECTED_RUN}}}"), RUN)],
            ),
            Chart(
                "Non-finite steps",
                "Steps per minute with a NaN or Inf in the gradients.",
                "cpm",
                [(named(rate("ammeter_nonfinite_steps_total", SELECTED_RUN, per_minute=True)), RUN)],
            ),
            Chart(
                "Non-finite values",
                "NaN and Inf elements per second. Inf alone is an overflow; an operation produces NaN.",
                "cps",
                [(named(rate("ammeter_nonfinite_values_total", SELECTED_RUN)), RUN + " {{kind}}")],
            ),
        ),
    ),
    (
        "Weights and kernels",
        (
            Chart(
                "Lost updates",
                "Share of sampled weights with a non-zero update that an applied step did not change: the update "
                "is too small for the precision of the weight.",
                "percentunit",
                [(named(f"ammeter_lost_update_ratio{{{SELECTED_RUN}}}"), RUN)],
                limits=((None, "green"), (0.5, "orange")),
            ),
            Chart(
                "Update to weight",
                "Norm of the update over the norm of the weights, about 1e-3 in many healthy trainings.",
                "sci",
                [(named(f"ammeter_update_to_weight_ratio{{{SELECTED_RUN}}}"), RUN)],
                log=10,
            ),
            Chart(
                "Work in low precision",
                "Share of the eligible FLOPs below autocast that ran in float16 or bfloat16.",
                "percentunit",
                [(named(f"ammeter_low_precision_flops_ratio{{{SELECTED_RUN}}}"), RUN)],
            ),
            Chart(
                "Fallbacks by operator",
                "Share of the eligible FLOPs in operators that could run in low precision and did not, or ran "
                "inefficiently, with the reason. The run's events name module and line.",
                "percentunit",
                [(named(f"ammeter_kernel_fallback_flops_ratio{{{SELECTED_RUN}}}"), RUN + " {{op}} {{reason}}")],
                missing="no fallbacks",
                limits=((None, "green"), (0.05, "orange")),
            ),
            Chart(
                "Time by operator",
                "Time in an operator in a typical sampled forward pass, with the dtype of its result: the three "
                "slowest, and all others. Measured under observation, without backward and optimizer.",
                "s",
                [(named(OPERATORS), RUN + " {{op}} {{dtype}}")],
                missing="no forward pass was counted",
            ),
            Chart(
                "Share by operator",
                "Share of an operator in the time of all operators of a typical sampled forward pass.",
                "percentunit",
                [(named(OPERATOR_SHARES), RUN + " {{op}} {{dtype}}")],
                missing="no forward pass was counted",
            ),
        ),
    ),
    (
        "Checkpoints and validation",
        (
            Chart(
                "Since the last checkpoint",
                "Age of the last checkpoint from which the run can resume completely: the cost of a crash now.",
                "s",
                [(named(f"time() - ammeter_checkpoint_last_timestamp_seconds{{{SELECTED_RUN}}}"), RUN)],
                missing="no complete checkpoint yet",
            ),
            Chart(
                "Checkpoints saved",
                "Per minute. Partial checkpoints lack float32 weights, optimizer or scaler that the run needs.",
                "cpm",
                [(named(rate("ammeter_checkpoint_saves_total", SELECTED_RUN, per_minute=True)), RUN + " {{outcome}}")],
            ),
            Chart(
                "Validation loss",
                "The last val_loss of run.log, at the step in the next panel.",
                "short",
                [(named(f"ammeter_last_validation_loss{{{SELECTED_RUN}}}"), RUN)],
                missing="the run logs no val_loss",
            ),
            Chart(
                "Steps",
                "The run's last step. A flat line is a stalled run.",
                "short",
                [(named(f"ammeter_run_step{{{SELECTED_RUN}}}"), RUN)],
            ),
        ),
    ),
    (
        "Speed and overhead",
        (
            Chart(
                "Step time",
                "Median and 99th percentile of the wall time of a step.",
                "s",
                median_and_p99("ammeter_step_duration_seconds", SELECTED_RUN),
            ),
            Distribution(
                "Step time, heatmap",
                "Steps per second of the selected runs by their wall time: two bands are two kinds of steps.",
                "s",
                [(buckets_of_projects("ammeter_step_duration_seconds", SELECTED_RUN), "{{le}}")],
            ),
            Chart(
                "Time inside Ammeter",
                "Share of the run's time that was spent inside Ammeter. The target is the budget, 1 %; "
                "skipped steps are always read.",
                "percentunit",
                [(named(f"ammeter_agent_overhead_ratio{{{SELECTED_RUN}}}"), RUN)],
                limits=((None, "green"), (0.01, "orange")),
                soft_max=0.02,
            ),
            Chart(
                "Undelivered journal",
                "Undelivered bytes on the training hosts. If they grow, the collector is down, slow or rejects them.",
                "bytes",
                [(named(f"ammeter_agent_journal_bytes{{{SELECTED_RUN}}}"), RUN)],
            ),
            Chart(
                "Lost records",
                "Steps and events lost per minute, by reason. Every lost record is counted.",
                "cpm",
                [(named(rate("ammeter_agent_lost_records_total", SELECTED_RUN, per_minute=True)), RUN + " {{reason}}")],
                limits=WARN_FROM_ZERO,
                width=FULL_WIDTH,
            ),
        ),
    ),
)

TOP = (
    Listing(
        "Open incidents",
        "Findings of verdicts that are still open, with links to the run's page and the runbook.",
        "none",
        "",
        [(open_incidents_named(f"{PROJECTS},{SELECTED_RUN}"), "")],
        INCIDENT_COLUMNS,
        width=FULL_WIDTH,
        links=INCIDENT_LINKS,
    ),
    Listing(
        "Runs",
        "Last step of each selected run that is running or ended recently, with its software and device.",
        "none",
        "Last step",
        [
            (
                f"max by (run) (ammeter_run_step{{{SELECTED_RUN}}}) * on (run) group_right () "
                "max by (run, name, project, precision, torch_version, device_model) "
                f"(ammeter_run_info{{{PROJECTS},{SELECTED_RUN}}})",
                "",
            )
        ],
        ("name", "project", "precision", "torch_version", "device_model", "run"),
        width=FULL_WIDTH,
        links={"name": OF_RUN, "run": OF_RUN},
    ),
)

BOARD = Board(
    name="debug",
    title="Ammeter / Debug a run",
    description="Loss scale, gradients, loss, kernels and checkpoints of the selected runs, and their incidents.",
    variables=(variables.runs(),),
    rows=(("", TOP), *ROWS),
    folded=tuple(title for title, _ in ROWS[1:]),
    incidents=f"{PROJECTS},{SELECTED_RUN}",
)

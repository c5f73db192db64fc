"""The debug board: panels for finding the cause of a fault in one run."""

from __future__ import annotations

from dashboards.board import Board
from dashboards.panels import Chart, Listing, variable
from dashboards.promql import CHOSEN, PROJECTS, RUN, median_and_p99, named, open_incidents_named, rate

SKIPPED = f'{CHOSEN},outcome="skipped"'

ROWS = (
    (
        "Loss scale and skipped steps",
        (
            Chart(
                "Loss scale",
                "Halves when a gradient overflows, doubles after growth_interval good steps. One-way down is a "
                "collapse; a sawtooth faster than growth_interval is an overflow storm.",
                "short",
                [(named(f"ammeter_scaler_scale{{{CHOSEN}}}"), RUN)],
                log=2,
            ),
            Chart(
                "Headroom",
                "Doublings of the scale that the largest gradient leaves below 65504. Below 0 the next step "
                "overflows; above 10 the scale could be higher and save small gradients.",
                "short",
                [(named(f"ammeter_scaler_headroom_doublings{{{CHOSEN}}}"), RUN)],
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
                            f"(sum without (outcome) ({rate('ammeter_steps_total', CHOSEN)}) > 0)"
                        ),
                        RUN,
                    )
                ],
            ),
            Chart(
                "Scale changes",
                "How often the loss scale went up or down per minute.",
                "cpm",
                [(named(rate("ammeter_scaler_scale_changes_total", CHOSEN, per_minute=True)), RUN + " {{direction}}")],
            ),
            Chart(
                "Skipped steps in a row",
                "Five in a row after the start page a person: every one of them halves the scale.",
                "short",
                [(named(f"ammeter_consecutive_skipped_steps{{{CHOSEN}}}"), RUN)],
                bars=True,
            ),
            Chart(
                "Overflow events",
                "Steps per minute in which GradScaler found an Inf or NaN.",
                "cpm",
                [(named(rate("ammeter_overflow_events_total", CHOSEN, per_minute=True)), RUN)],
            ),
        ),
    ),
    (
        "Values",
        (
            Chart(
                "Gradient norm",
                "L2 norm of all gradients in the last step, unscaled. Gaps are steps where it was not finite.",
                "short",
                [(named(f"ammeter_last_grad_norm{{{CHOSEN}}}"), RUN)],
                log=10,
            ),
            Chart(
                "Gradient norm, distribution",
                "Median and 99th percentile over all steps of the interval, which a scrape of the last step misses.",
                "short",
                median_and_p99("ammeter_grad_norm", CHOSEN),
                log=10,
            ),
            Chart(
                "Training loss",
                "Loss of the last step, unscaled. A gap while the run goes on is a loss that was not finite.",
                "short",
                [(named(f"ammeter_last_loss{{{CHOSEN}}}"), RUN)],
            ),
            Chart(
                "Underflow",
                "Share of gradient elements that are zero or subnormal in float16 while scaled, when last sampled. "
                "Zeros of embeddings and ReLU are normal: watch the change, not the level.",
                "percentunit",
                [(named(f"ammeter_grad_underflow_ratio{{{CHOSEN}}}"), RUN)],
            ),
            Chart(
                "Non-finite steps",
                "Steps per minute with a NaN or Inf in the gradients.",
                "cpm",
                [(named(rate("ammeter_nonfinite_steps_total", CHOSEN, per_minute=True)), RUN)],
            ),
            Chart(
                "Non-finite values",
                "NaN and Inf elements per second. Inf alone is overflow; NaN is born in an operation.",
                "short",
                [(named(rate("ammeter_nonfinite_values_total", CHOSEN)), RUN + " {{kind}}")],
            ),
        ),
    ),
    (
        "Weights and kernels",
        (
            Chart(
                "Lost updates",
                "Share of sampled weights that an applied step did not change although it meant to: the update is "
                "too small for the precision of the weight.",
                "percentunit",
                [(named(f"ammeter_lost_update_ratio{{{CHOSEN}}}"), RUN)],
            ),
            Chart(
                "Updates beside the weights",
                "Norm of the update over the norm of the weights, about 1e-3 in many healthy trainings.",
                "short",
                [(named(f"ammeter_update_to_weight_ratio{{{CHOSEN}}}"), RUN)],
                log=10,
            ),
            Chart(
                "Work in low precision",
                "Share of the eligible FLOPs below autocast that ran in float16 or bfloat16.",
                "percentunit",
                [(named(f"ammeter_low_precision_flops_ratio{{{CHOSEN}}}"), RUN)],
            ),
            Chart(
                "Fallbacks by operator",
                "Share of the eligible FLOPs in operators that could run in low precision and did not, or not well, "
                "with the reason. The run's events name module and line.",
                "percentunit",
                [(named(f"ammeter_kernel_fallback_flops_ratio{{{CHOSEN}}}"), RUN + " {{op}} {{reason}}")],
                missing="nothing fell back",
            ),
        ),
    ),
    (
        "Checkpoints and validation",
        (
            Chart(
                "Since the last checkpoint",
                "Age of the last checkpoint that has all the run needs to go on: what a crash now would cost.",
                "s",
                [(named(f"time() - ammeter_checkpoint_last_timestamp_seconds{{{CHOSEN}}}"), RUN)],
                missing="no complete checkpoint yet",
            ),
            Chart(
                "Checkpoints saved",
                "Per minute, complete or partial: without float32 weights, optimizer or scaler that the run needs.",
                "cpm",
                [(named(rate("ammeter_checkpoint_saves_total", CHOSEN, per_minute=True)), RUN + " {{outcome}}")],
            ),
            Chart(
                "Validation loss",
                "What run.log said last as val_loss, at the step of the panel beside it.",
                "short",
                [(named(f"ammeter_last_validation_loss{{{CHOSEN}}}"), RUN)],
                missing="the run logs no val_loss",
            ),
            Chart(
                "Steps",
                "The run's last step. A flat line is a run that stands still.",
                "short",
                [(named(f"ammeter_run_step{{{CHOSEN}}}"), RUN)],
            ),
        ),
    ),
    (
        "Speed, and what watching costs",
        (
            Chart(
                "Step time",
                "Median and 99th percentile of the wall time of a step.",
                "s",
                median_and_p99("ammeter_step_duration_seconds", CHOSEN),
            ),
            Chart(
                "Time inside Ammeter",
                "Share of the run's time that was spent inside Ammeter. The governor aims at the budget, 1 %; "
                "skipped steps are read in any case.",
                "percentunit",
                [(named(f"ammeter_agent_overhead_ratio{{{CHOSEN}}}"), RUN)],
            ),
            Chart(
                "Journal not delivered",
                "Bytes that wait on the training hosts. Growing: the collector is down, slow or refuses them.",
                "bytes",
                [(named(f"ammeter_agent_journal_bytes{{{CHOSEN}}}"), RUN)],
            ),
            Chart(
                "Lost records",
                "Steps and events lost per minute, by reason. Nothing is lost without being counted here.",
                "cpm",
                [(named(rate("ammeter_agent_lost_records_total", CHOSEN, per_minute=True)), RUN + " {{reason}}")],
            ),
        ),
    ),
)

TOP = (
    Listing(
        "Open incidents",
        "What a verdict found and what is not over. The collector's page of the run has cause and fix.",
        "none",
        "Open",
        [(open_incidents_named(f"{PROJECTS},{CHOSEN}"), "")],
    ),
    Listing(
        "Runs",
        "Last step of each chosen run that goes on or ended in the last minutes, with what it runs on.",
        "none",
        "Last step",
        [
            (
                f"max by (run) (ammeter_run_step{{{CHOSEN}}}) * on (run) group_right () "
                "max by (run, name, project, precision, torch_version, device_model) "
                f"(ammeter_run_info{{{PROJECTS},{CHOSEN}}})",
                "",
            )
        ],
    ),
)

BOARD = Board(
    name="debug",
    title="Ammeter / Debug a run",
    description="Loss scale, gradients, loss, kernels and checkpoints of the chosen runs, and their incidents.",
    variables=(
        variable("project", "Project", "label_values(ammeter_run_info, project)"),
        variable("run", "Run", 'label_values(ammeter_run_info{project=~"$project"}, run)'),
    ),
    rows=(("", TOP), *ROWS),
)

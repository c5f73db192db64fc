"""The debug board: what a person looks at who has to mend a run."""

from __future__ import annotations

from grafana_foundation_sdk.builders import dashboard, table
from grafana_foundation_sdk.models.dashboard import Dashboard, DashboardCursorSync

from dashboards.panels import CHOSEN, Chart, panel_of, table_of, variable

ROWS = (
    (
        "Loss scale and skipped steps",
        (
            Chart(
                "Loss scale",
                "Halves when a gradient overflows, doubles after growth_interval good steps. One-way down is a "
                "collapse; a sawtooth faster than growth_interval is an overflow storm.",
                "short",
                [(f"ammeter_scaler_scale{{{CHOSEN}}}", "{{run}}")],
                log=2,
            ),
            Chart(
                "Headroom",
                "Doublings of the scale that the largest gradient leaves below 65504. Below 0 the next step "
                "overflows; above 10 the scale could be higher and save small gradients.",
                "short",
                [(f"ammeter_scaler_headroom_doublings{{{CHOSEN}}}", "{{run}}")],
            ),
            Chart(
                "Skipped steps",
                "Share of optimizer steps that GradScaler skipped. A few at the start are calibration; later, about "
                "one per growth_interval is normal.",
                "percentunit",
                [
                    (
                        f'rate(ammeter_steps_total{{{CHOSEN},outcome="skipped"}}[$__rate_interval]) / '
                        f"ignoring(outcome) sum without (outcome) "
                        f"(rate(ammeter_steps_total{{{CHOSEN}}}[$__rate_interval]))",
                        "{{run}}",
                    )
                ],
            ),
            Chart(
                "Scale changes",
                "How often the loss scale went up or down per minute.",
                "cpm",
                [
                    (
                        f"60 * rate(ammeter_scaler_scale_changes_total{{{CHOSEN}}}[$__rate_interval])",
                        "{{run}} {{direction}}",
                    )
                ],
            ),
            Chart(
                "Skipped steps in a row",
                "Five in a row after the start page a person: every one of them halves the scale.",
                "short",
                [(f"ammeter_consecutive_skipped_steps{{{CHOSEN}}}", "{{run}}")],
                bars=True,
            ),
            Chart(
                "Overflow events",
                "Steps per minute in which GradScaler found an Inf or NaN.",
                "cpm",
                [(f"60 * rate(ammeter_overflow_events_total{{{CHOSEN}}}[$__rate_interval])", "{{run}}")],
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
                [(f"ammeter_last_grad_norm{{{CHOSEN}}}", "{{run}}")],
                log=10,
            ),
            Chart(
                "Gradient norm, distribution",
                "Median and 99th percentile over all steps of the interval, which a scrape of the last step misses.",
                "short",
                [
                    (
                        f"histogram_quantile({share}, sum by (run, le) "
                        f"(rate(ammeter_grad_norm_bucket{{{CHOSEN}}}[$__rate_interval])))",
                        f"{{{{run}}}} {word}",
                    )
                    for share, word in (("0.5", "median"), ("0.99", "p99"))
                ],
                log=10,
            ),
            Chart(
                "Training loss",
                "Loss of the last step, unscaled. A gap while the run goes on is a loss that was not finite.",
                "short",
                [(f"ammeter_last_loss{{{CHOSEN}}}", "{{run}}")],
            ),
            Chart(
                "Underflow",
                "Share of gradient elements that are zero or subnormal in float16 while scaled, when last sampled. "
                "Zeros of embeddings and ReLU are normal: watch the change, not the level.",
                "percentunit",
                [(f"ammeter_grad_underflow_ratio{{{CHOSEN}}}", "{{run}}")],
            ),
            Chart(
                "Non-finite steps",
                "Steps per minute with a NaN or Inf in the gradients.",
                "cpm",
                [(f"60 * rate(ammeter_nonfinite_steps_total{{{CHOSEN}}}[$__rate_interval])", "{{run}}")],
            ),
            Chart(
                "Non-finite values",
                "NaN and Inf elements per second. Inf alone is overflow; NaN is born in an operation.",
                "short",
                [(f"rate(ammeter_nonfinite_values_total{{{CHOSEN}}}[$__rate_interval])", "{{run}} {{kind}}")],
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
                [
                    (
                        f"histogram_quantile({share}, sum by (run, le) "
                        f"(rate(ammeter_step_duration_seconds_bucket{{{CHOSEN}}}[$__rate_interval])))",
                        f"{{{{run}}}} {word}",
                    )
                    for share, word in (("0.5", "median"), ("0.99", "p99"))
                ],
            ),
            Chart(
                "Time inside Ammeter",
                "Share of the run's time that was spent inside Ammeter. The governor aims at the budget, 1 %; "
                "skipped steps are read in any case.",
                "percentunit",
                [(f"ammeter_agent_overhead_ratio{{{CHOSEN}}}", "{{run}}")],
            ),
            Chart(
                "Journal not delivered",
                "Bytes that wait on the training hosts. Growing: the collector is down, slow or refuses them.",
                "bytes",
                [(f"ammeter_agent_journal_bytes{{{CHOSEN}}}", "{{run}}")],
            ),
            Chart(
                "Lost records",
                "Steps and events lost per minute, by reason. Nothing is lost without being counted here.",
                "cpm",
                [
                    (
                        f"60 * rate(ammeter_agent_lost_records_total{{{CHOSEN}}}[$__rate_interval])",
                        "{{run}} {{reason}}",
                    )
                ],
            ),
        ),
    ),
)


def board() -> Dashboard:
    """The board, its panels not yet numbered."""
    made = (
        dashboard.Dashboard("Ammeter / Debug a run")
        .uid("ammeter-debug")
        .description("Loss scale, gradients and loss of the chosen runs, and their incidents.")
        .tags(["ammeter"])
        .readonly()
        .tooltip(DashboardCursorSync.CROSSHAIR)
        .refresh("10s")
        .time("now-1h", "now")
        .with_variable(dashboard.DatasourceVariable("datasource").label("Data source").type("prometheus"))
        .with_variable(variable("project", "Project", "label_values(ammeter_run_info, project)"))
        .with_variable(variable("run", "Run", 'label_values(ammeter_run_info{project=~"$project"}, run)'))
        .with_panel(_incidents())
        .with_panel(_runs())
    )
    for title, charts in ROWS:
        made = made.with_row(dashboard.Row(title))
        for chart in charts:
            made = made.with_panel(panel_of(chart))
    return made.build()


def _incidents() -> table.Panel:
    return table_of(
        "Open incidents",
        "What a verdict found and what is not over. The collector's page of the run has cause and fix.",
        f'max by (run, project, verdict, severity) (ammeter_incident_active{{project=~"$project",{CHOSEN}}}) == 1',
    )


def _runs() -> table.Panel:
    return table_of(
        "Runs",
        "Last step of each chosen run that goes on or ended in the last hour, with what it runs on.",
        f"max by (run) (ammeter_run_step{{{CHOSEN}}}) * on (run) group_right () "
        "max by (run, project, precision, torch_version, device_model) "
        f'(ammeter_run_info{{project=~"$project",{CHOSEN}}})',
    )

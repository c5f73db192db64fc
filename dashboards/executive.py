"""The executive board: benefit and cost of mixed precision, and whether objectives are met."""

from __future__ import annotations

from grafana_foundation_sdk.builders import dashboard

from dashboards.board import Board
from dashboards.panels import FULL_WIDTH, TALL_ROWS, Chart, Figure, Listing, variable
from dashboards.promql import (
    INFO,
    PROJECTS,
    RUN,
    RUNNING,
    increase,
    named,
    of_projects,
    of_projects_seen,
    or_none,
    rate,
    seen,
)

AMP = f'{PROJECTS},precision=~"float16|bfloat16"'
NOT_ENDED = f'{PROJECTS},outcome!="ended"'
SKIPPED = f'{PROJECTS},outcome="skipped"'

COST = f"max by (run) ({seen('ammeter_run_cost_dollars')})"
SPEEDUP = f"max by (run) ({seen('ammeter_speedup_vs_baseline_ratio')})"
OF_PROJECT = f"* on (run) group_left (name, project) max by (run, name, project) ({seen('ammeter_run_info', PROJECTS)})"

NO_PRICE = "no price: AMMETER_SERVER_COST_PER_HOUR"
NO_BASELINE = "no run names a baseline"
NO_RUN_ENDED = "no run ended in this time"


def share(part: str, total: str) -> str:
    """Returns the ratio of two sums, without a result if the total is zero."""
    return f"sum({part}) / (sum({total}) > 0)"


BAD_RUNS = share(
    increase("ammeter_fleet_runs_total", NOT_ENDED),
    increase("ammeter_fleet_runs_total", PROJECTS),
)
BAD_STEPS = share(
    increase("ammeter_fleet_steps_total", SKIPPED),
    increase("ammeter_fleet_steps_total", PROJECTS),
)
FINITE = f'{PROJECTS},outcome=~"ended|diverged"'
DIVERGED = share(
    increase("ammeter_fleet_runs_total", f'{PROJECTS},outcome="diverged"'),
    increase("ammeter_fleet_runs_total", FINITE),
)
DRIFTED = share(
    increase("ammeter_fleet_validations_total", f'{PROJECTS},outcome="drifted"'),
    increase("ammeter_fleet_validations_total", PROJECTS),
)
LATE = share(
    increase("ammeter_fleet_times_total", f'{PROJECTS},outcome="late"'),
    increase("ammeter_fleet_times_total", PROJECTS),
)
BAD_STEPS_NOW = share(rate("ammeter_fleet_steps_total", SKIPPED), rate("ammeter_fleet_steps_total", PROJECTS))

TOP = (
    Figure(
        "Training now",
        "Running trainings.",
        "none",
        [(or_none(f"count({of_projects(RUNNING)})"), "runs")],
    ),
    Figure(
        "AMP runs",
        "Runs in float16 or bfloat16 in the displayed time.",
        "none",
        [(or_none(f"count(count by (run) ({seen('ammeter_run_info', AMP)}))"), "runs")],
    ),
    Figure(
        "Throughput gain",
        "Mean speed gain of runs over the float32 baselines that they name. Below 0, mixed precision costs "
        "time; the verdict slower-than-fp32 gives the reason.",
        "percentunit",
        [(f"avg({of_projects_seen(SPEEDUP)}) - 1", "against float32")],
        missing=NO_BASELINE,
    ),
    Figure(
        "Cost of the trainings",
        "Cost of the runs in the displayed time since each began: device hours at the collector's prices.",
        "currencyUSD",
        [(f"sum({of_projects_seen(COST)})", "dollars")],
        missing=NO_PRICE,
    ),
    Figure(
        "Saved against float32",
        "Additional cost that runs with a float32 baseline would have had at the baseline's speed.",
        "currencyUSD",
        [(f"sum({of_projects_seen(f'{COST} * on (run) ({SPEEDUP} - 1)')})", "dollars")],
        missing=NO_BASELINE,
    ),
    Figure(
        "Steps applied",
        "Share of optimizer steps in the displayed time that changed the weights. GradScaler skipped the others.",
        "percentunit",
        [(f"1 - {BAD_STEPS}", "applied")],
        missing="no step in this time",
    ),
)

OBJECTIVES = (
    Figure(
        "Budget burnt by runs",
        "Share of runs that failed or were lost over the share that the objective allows. Above 1, the objective "
        "is missed if the trend continues.",
        "none",
        [(f"{BAD_RUNS} / (1 - $objective_runs)", "times the budget")],
        missing=NO_RUN_ENDED,
        height=TALL_ROWS,
    ),
    Figure(
        "Budget burnt by steps",
        "Share of steps that were skipped over the share that the objective allows.",
        "none",
        [(f"{BAD_STEPS} / (1 - $objective_steps)", "times the budget")],
        missing="no step in this time",
        height=TALL_ROWS,
    ),
    Chart(
        "Burn of the steps' budget",
        "Rate at which skipped steps use the budget of the objective: at 1 exactly all of it. The alerts use the "
        "same ratio over two windows.",
        "none",
        [(f"{BAD_STEPS_NOW} / (1 - $objective_steps)", "times the budget")],
        width=FULL_WIDTH - 8,
    ),
    Figure(
        "Budget burnt by divergence",
        "Share of runs that ended with non-finite weights or loss over the share that the objective allows.",
        "none",
        [(f"{DIVERGED} / (1 - $objective_finite)", "times the budget")],
        missing=NO_RUN_ENDED,
        width=8,
    ),
    Figure(
        "Budget burnt by validation",
        "Share of runs whose validation is worse than their baseline's by more than the tag validation_delta, over "
        "the share that the objective allows.",
        "none",
        [(f"{DRIFTED} / (1 - $objective_validation)", "times the budget")],
        missing="no run with a baseline and a validation ended in this time",
        width=8,
    ),
    Figure(
        "Budget burnt by time",
        "Share of runs that took longer than their tag expected_hours over the share that the objective allows.",
        "none",
        [(f"{LATE} / (1 - $objective_time)", "times the budget")],
        missing="no run has the tag expected_hours",
        width=8,
    ),
    Chart(
        "How runs ended",
        "Runs per interval by outcome: ended, diverged (ended with non-finite weights or loss), failed (exception "
        "or signal), lost (no final record).",
        "none",
        [(f"sum by (outcome) (increase(ammeter_fleet_runs_total{{{PROJECTS}}}[$__rate_interval]))", "{{outcome}}")],
    ),
    Chart(
        "Steps of the fleet",
        "Optimizer steps of all runs per second, applied and skipped.",
        "ops",
        [(f"sum by (outcome) ({rate('ammeter_fleet_steps_total', PROJECTS)})", "{{outcome}}")],
    ),
)

VALUE = (
    Chart(
        "Runs by precision",
        "Runs that are running or ended in the last hour, by precision.",
        "none",
        [(f'count by (precision) ({INFO[:-1]},precision!=""}})', "{{precision}}")],
    ),
    Listing(
        "Against the float32 baseline",
        "Speed of each run relative to the baseline that it names.",
        "none",
        "Times as fast",
        [(f"{SPEEDUP} {OF_PROJECT}", "")],
        missing=NO_BASELINE,
    ),
    Listing(
        "Cost of each training",
        "Cost of each run in the displayed time since it began, without the time between attempts.",
        "currencyUSD",
        "Dollars",
        [(f"{COST} {OF_PROJECT}", "")],
        missing=NO_PRICE,
    ),
    Chart(
        "Cost of an epoch",
        "Cost of one pass over the data, for runs that log their epochs.",
        "currencyUSD",
        [(named("ammeter_cost_per_epoch_dollars"), RUN)],
        missing="no run logs its epochs, or there is no price",
    ),
    Chart(
        "Dollars per hour",
        "Spending of the fleet: the price of all devices that train.",
        "currencyUSD",
        [(f"sum by (project) (3600 * {rate('ammeter_fleet_cost_dollars_total', PROJECTS)})", "{{project}}")],
        missing=NO_PRICE,
    ),
    Chart(
        "Throughput gain by run",
        "Speed gain of each run over the float32 baseline that it names.",
        "percentunit",
        [(named("ammeter_speedup_vs_baseline_ratio - 1"), RUN)],
        missing=NO_BASELINE,
    ),
)

BOARD = Board(
    name="executive",
    title="Ammeter / Overview",
    description="Benefit and cost of mixed precision, and the share of the objectives' budgets that is burnt.",
    variables=(
        variable("project", "Project", "label_values(ammeter_run_info, project)"),
        dashboard.TextBoxVariable("objective_runs").label("Objective: runs that end well").default_value("0.95"),
        dashboard.TextBoxVariable("objective_steps").label("Objective: steps applied").default_value("0.99"),
        dashboard.TextBoxVariable("objective_finite").label("Objective: finite at the end").default_value("0.98"),
        dashboard.TextBoxVariable("objective_validation").label("Objective: validations hold").default_value("0.95"),
        dashboard.TextBoxVariable("objective_time").label("Objective: finished in time").default_value("0.9"),
    ),
    rows=(("", TOP), ("Objectives", OBJECTIVES), ("Value", VALUE)),
    since="now-6h",
    refresh="1m",
)

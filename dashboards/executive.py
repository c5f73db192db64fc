"""The executive board: benefit and cost of mixed precision, and whether objectives are met."""

from __future__ import annotations

from grafana_foundation_sdk.builders import dashboard

from dashboards.board import Board
from dashboards.links import OF_BASELINE, OF_RUN
from dashboards.panels import FULL_WIDTH, HALF_WIDTH, Chart, Figure, Limits, Listing
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
FLOAT32 = 'ammeter_run_baseline_info{baseline_precision="float32"}'
LIKE = f"last_over_time({FLOAT32}[$__range])"
GAIN = f"{SPEEDUP} and on (run) {LIKE}"
"""Speed of runs over a float32 baseline. Runs that are not alike have no speed: the collector does not export it."""

OF_PROJECT = f"* on (run) group_left (name, project) max by (run, name, project) ({seen('ammeter_run_info', PROJECTS)})"

NO_PRICE = "no price is set"
NO_BASELINE = "no float32 baseline"
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

BURN: Limits = ((None, "green"), (0.5, "orange"), (1, "red"))
"""Of an error budget: half of it, and all of it."""

TOP = (
    Figure(
        "Training now",
        "Running trainings.",
        "none",
        [(or_none(f"count({of_projects(RUNNING)})"), "runs")],
        width=8,
    ),
    Figure(
        "AMP runs",
        "Runs in float16 or bfloat16 in the displayed time.",
        "none",
        [(or_none(f"count(count by (run) ({seen('ammeter_run_info', AMP)}))"), "runs")],
        width=8,
    ),
    Figure(
        "Throughput gain",
        "Mean speed gain over the float32 baselines that runs name, of like runs only. Below 0, mixed precision "
        "costs time; the verdict slower-than-fp32 gives the reason.",
        "percentunit",
        [(f"avg({of_projects_seen(GAIN)}) - 1", "against float32")],
        missing=NO_BASELINE,
        limits=((None, "red"), (0, "green")),
        change=True,
        width=8,
    ),
    Figure(
        "Cost of the trainings",
        "Cost of the runs in the displayed time since each began: device hours at the prices of "
        "AMMETER_SERVER_COST_PER_HOUR.",
        "currencyUSD",
        [(f"sum({of_projects_seen(COST)})", "dollars")],
        missing=NO_PRICE,
        width=8,
    ),
    Figure(
        "Saved against float32",
        "Additional cost that runs with a float32 baseline would have had at the baseline's speed.",
        "currencyUSD",
        [(f"sum({of_projects_seen(f'{COST} * on (run) (({GAIN}) - 1)')})", "dollars")],
        missing=NO_BASELINE,
        limits=((None, "red"), (0, "green")),
        width=8,
    ),
    Figure(
        "Steps applied",
        "Share of optimizer steps in the displayed time that changed the weights. GradScaler skipped the others.",
        "percentunit",
        [(f"1 - {BAD_STEPS}", "applied")],
        missing="no step in this time",
        limits=((None, "red"), (0.95, "orange"), (0.99, "green")),
        width=8,
    ),
)

OBJECTIVES = (
    Figure(
        "Budget burnt by runs",
        "Share of runs that failed or were lost over the share that the objective allows. Above 1, the objective "
        "is missed if the trend continues.",
        "none",
        [(f"{BAD_RUNS} / (1 - $objective_runs)", "times the budget")],
        limits=BURN,
        missing=NO_RUN_ENDED,
        width=8,
    ),
    Figure(
        "Budget burnt by steps",
        "Share of steps that were skipped over the share that the objective allows.",
        "none",
        [(f"{BAD_STEPS} / (1 - $objective_steps)", "times the budget")],
        limits=BURN,
        missing="no step in this time",
        width=8,
    ),
    Figure(
        "Budget burnt by divergence",
        "Share of runs that ended with non-finite weights or loss over the share that the objective allows.",
        "none",
        [(f"{DIVERGED} / (1 - $objective_finite)", "times the budget")],
        limits=BURN,
        missing=NO_RUN_ENDED,
        width=8,
    ),
    Figure(
        "Budget burnt by validation",
        "Share of runs whose validation is worse than their baseline's by more than the tag validation_delta, over "
        "the share that the objective allows.",
        "none",
        [(f"{DRIFTED} / (1 - $objective_validation)", "times the budget")],
        limits=BURN,
        missing="no run with a baseline and a validation ended in this time",
        width=HALF_WIDTH,
    ),
    Figure(
        "Budget burnt by time",
        "Share of runs that took longer than their tag expected_hours over the share that the objective allows.",
        "none",
        [(f"{LATE} / (1 - $objective_time)", "times the budget")],
        limits=BURN,
        missing="no run has the tag expected_hours",
        width=HALF_WIDTH,
    ),
    Chart(
        "Burn of the steps' budget",
        "Rate at which skipped steps use the budget of the objective: at 1 exactly all of it. The alerts use the "
        "same ratio over two windows.",
        "none",
        [(f"{BAD_STEPS_NOW} / (1 - $objective_steps)", "times the budget")],
        limits=((None, "green"), (1, "red")),
        width=FULL_WIDTH,
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
        "cps",
        [(f"sum by (outcome) ({rate('ammeter_fleet_steps_total', PROJECTS)})", "{{outcome}}")],
    ),
)

VALUE = (
    Listing(
        "Against the baseline",
        "Speed of each run relative to the baseline that it names, if both are alike, and that baseline's precision.",
        "none",
        "Times as fast",
        [
            (
                f"max by (run, baseline, baseline_precision) ({seen('ammeter_run_baseline_info')}) "
                f"* on (run) group_left () {SPEEDUP} {OF_PROJECT}",
                "",
            )
        ],
        ("name", "project", "baseline_precision", "run", "baseline"),
        missing="no run names a baseline that is like it",
        width=FULL_WIDTH,
        limits=((None, "red"), (1, "green")),
        links={"name": OF_RUN, "run": OF_RUN, "baseline": OF_BASELINE},
    ),
    Chart(
        "Throughput gain by run",
        "Speed gain of each run over the float32 baseline that it names, of like runs only.",
        "percentunit",
        [(named(f"ammeter_speedup_vs_baseline_ratio - 1 and on (run) {FLOAT32}"), RUN)],
        missing=NO_BASELINE,
        limits=((None, "red"), (0, "green")),
        change=True,
    ),
    Chart(
        "Runs by precision",
        "Runs that are running or ended in the last hour, by precision.",
        "none",
        [(f'count by (precision) ({INFO[:-1]},precision!=""}})', "{{precision}}")],
    ),
    Listing(
        "Cost of each training",
        "Cost of each run in the displayed time since it began, without the time between attempts.",
        "currencyUSD",
        "Dollars",
        [(f"{COST} {OF_PROJECT}", "")],
        ("name", "project", "run"),
        missing=NO_PRICE,
        width=FULL_WIDTH,
        links={"name": OF_RUN, "run": OF_RUN},
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
)

BOARD = Board(
    name="executive",
    title="Ammeter / Overview",
    description="Benefit and cost of mixed precision, and the share of the objectives' budgets that is burnt.",
    variables=(
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

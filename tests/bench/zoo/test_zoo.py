"""bench/zoo's own judgement: what counts as found, named, pointed at and in time, and the zoo at its smallest."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest

from bench.common import readme
from bench.common.paths import ROOT
from bench.zoo import __main__ as zoo
from bench.zoo import detectors as zoo_eyes
from bench.zoo import plan as zoo_plan
from bench.zoo import report as zoo_tables
from bench.zoo import runner as zoo_runs
from bench.zoo import scoring as zoo_judging
from bench.zoo.detectors import ANOMALY, CAUSE, LOSS, NAN, NORM, PART, TORCH, Said
from bench.zoo.plan import Case, Plan
from bench.zoo.report import Measured
from bench.zoo.runner import Culprit, Result, Row
from bench.zoo.scoring import Healthy, Judged
from bench.zoo.trainer import REGISTRY

CASE = Case("scale-collapse", "gpt", "fp16", "adamw", 0, 20)
GUILTY = Culprit(["blocks.1.mlp", "blocks.1.mlp.weight"], [("call_order.py", 30, 40)])


def finding(verdict: str, opened: int = 21, **more: Any) -> dict[str, Any]:
    told = {"verdict": verdict, "severity": "page", "opened_step": opened, "consequences": []}
    return {**told, "tensor": None, "module": None, "caller": None, **more}


def result(*findings: dict[str, Any], case: Case = CASE, **more: Any) -> Result:
    rows = [Row(step, 10**6 * step, step >= 20, ["grad_norm"] if step % 3 == 0 else []) for step in range(60)]
    return Result(**{"case": case, "code": 0, "findings": list(findings), "rows": rows, "culprit": GUILTY, **more})


def judged(*findings: dict[str, Any], **more: Any) -> Judged:
    twin = Result(CASE.twin, 0, more.pop("of_twin", []), others=more.pop("twin_said", []))
    return zoo_judging.judged(result(*findings, **more), twin)


def test_a_fault_is_named_when_its_verdict_is_the_first_finding() -> None:
    found = judged(finding("scale-collapse"), finding("lost-updates"))
    assert (True, True, ["lost-updates"]) == (found.detected, found.right, found.beside)
    found = judged(finding("lost-updates"), finding("scale-collapse"))
    assert (True, False, "lost-updates") == (found.detected, found.right, found.first)
    found = judged()
    assert (False, False, "", None) == (found.detected, found.right, found.first, found.after)


def test_what_the_healthy_twin_has_too_finds_no_fault() -> None:
    assert not judged(finding("lost-updates"), of_twin=[finding("lost-updates")]).detected


@pytest.mark.parametrize(
    ("named", "right"),
    [
        ({"module": "blocks.1.mlp"}, True),
        ({"tensor": "blocks.1.mlp.weight", "module": "blocks.1"}, True),
        ({"module": "blocks.1.mlp.fc"}, False),
        ({"caller": "trainer/call_order.py:30"}, True),
        ({"caller": "trainer/call_order.py:41"}, False),
        ({"caller": "trainer/train.py:35"}, False),
        ({}, False),
    ],
)
def test_the_culprit_is_a_part_that_is_broken_or_a_line_of_what_breaks_it(named: dict[str, Any], right: bool) -> None:
    assert right == judged(finding("scale-collapse", **named)).culprit


def test_of_a_fault_without_a_part_or_line_none_is_asked_for() -> None:
    assert judged(case=Case("overflow-storm", "gpt", "fp16", "adamw")).culprit is None


def test_how_much_later_counts_from_the_first_symptom_in_steps_or_in_readings() -> None:
    found = judged(finding("scale-collapse", opened=24))
    assert (4, 5, "steps", True) == (found.after, found.limit, found.unit, found.in_time)
    assert pytest.approx(0.005) == found.seconds
    assert not judged(finding("scale-collapse", opened=26)).in_time
    spike = Case("gradient-spike", "gpt", "bf16", "adamw", 0, 20)
    found = judged(finding("gradient-spike", opened=33), case=spike)
    assert (5, 4, "grad_norm", False) == (found.after, found.limit, found.unit, found.in_time)
    storm = Case("overflow-storm", "gpt", "fp16", "adamw")
    assert 13 == judged(finding("overflow-storm", opened=33), case=storm).after  # its first skipped step is the 20th


def test_other_eyes_notice_what_they_do_not_say_of_the_twin() -> None:
    said = [Said(NAN, 25), Said(LOSS, 12), Said(NORM, 30)]
    assert {NAN: [], NORM: []} == judged(others=said).others
    assert {NAN: []} == judged(others=said, twin_said=[Said(NORM, 40)]).others
    assert {NAN: [], NORM: []} == judged(others=said, twin_said=[Said(NORM, 10)]).others  # before the fault began
    assert ANOMALY not in judged(others=said).looked


def test_other_eyes_are_given_what_their_words_name() -> None:
    trace = 'File "/somewhere/trainer/call_order.py", line 35, in forward'
    assert {ANOMALY: [PART]} == judged(anomaly=[Said(ANOMALY, 20, trace)]).others
    assert {ANOMALY: []} == judged(anomaly=[Said(ANOMALY, 20, trace.replace("35", "45"))]).others
    early = Case("scheduler-ahead", "gpt", "fp16", "adamw", 0, 20)
    warning = "UserWarning: Detected call of `lr_scheduler.step()` before `optimizer.step()`."
    assert {TORCH: [CAUSE]} == judged(case=early, others=[Said(TORCH, 20, warning)]).others
    assert {TORCH: []} == judged(others=[Said(TORCH, 20, warning)]).others


def test_a_running_median_is_that_of_the_finite_values_before() -> None:
    median = zoo_eyes.Median()
    assert 10 * [float("inf")] == [median.before(value) for value in (*range(9), float("nan"))]
    assert [float("inf"), 4.5] == [median.before(9.0), median.before(100.0)]


def sound(*tickets: str, pages: tuple[str, ...] = ()) -> Healthy:
    return Healthy(Case("compiled", precision="bf16"), list(pages), list(tickets), list(zoo_eyes.EYES), [])


def measured(broken: list[Judged], healthy: list[Healthy]) -> Measured:
    return Measured(broken, healthy, zoo_judging.limits(broken, healthy), 1.0)


GOOD = [finding("scale-collapse", module="blocks.1.mlp")]


def test_each_limit_is_held_against_all_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    good = [judged(*GOOD)] * 20
    cases = {
        "": measured(good, [sound()] * 50),
        "broken runs in which something is found": measured([*good * 2, judged()], [sound()]),
        "broken runs whose fault is named first": measured([*good, *[judged(finding("lost-updates"))] * 2], [sound()]),
        "broken parts or lines that are named": measured([*good, *[judged(finding("scale-collapse"))] * 3], [sound()]),
        "verdicts that are reached in time": measured([*good, judged(finding("scale-collapse", 90))], [sound()]),
        "healthy runs without a page": measured(good, [*[sound()] * 90, sound(pages=("run-lost",))]),
        "healthy runs without a ticket": measured(good, [*[sound()] * 90, *[sound("sdpa-math")] * 2]),
    }
    for missed, each in cases.items():
        monkeypatch.setattr(zoo, "measure", lambda *_, each=each: each)
        assert ([missed] if missed else []) == [limit.words for limit in each.limits if not limit.met][:1]
        assert bool(missed) == zoo.main([])


def test_the_tables_say_which_run_missed_what() -> None:
    broken = [judged(*GOOD), judged(finding("lost-updates")), judged()]
    told = zoo_tables.markdown(measured(broken, [sound("sdpa-math"), sound()]), "make zoo")
    name = "scale-collapse@20 gpt fp16 adamw seed 0"
    assert f"- {name}: `lost-updates` was named first; it pointed at nothing" in told
    assert f"- {name}: nothing was found" in told
    assert "- compiled bf16 seed 0: sdpa-math" in told
    assert "| ammeter | 2 of 3 (66.7 %) | 1 of 3 (33.3 %) | 1 of 3 (33.3 %) | 1 of 2 (50.0 %) |" in told
    assert "| broken runs in which something is found | 2 of 3 (66.7 %) | 100 % | **missed** |" in told


def test_every_fault_is_tried_on_every_network_that_can_have_it_and_beside_its_twin() -> None:
    cases = Plan().cases()
    assert len(cases) == len(set(cases))
    assert set(REGISTRY) == {each.what for each in cases if each.fault}
    assert all(each.twin in cases for each in cases if each.fault and not each.frugal)
    tried = {(each.what, each.precision) for each in cases if each.fault}
    assert {(name, each) for name, fault in REGISTRY.items() for each in fault.precisions} == tried
    assert {0, 1, 2} == {each.seed for each in cases}
    assert 40 <= len([each for each in cases if not each.fault and each.what])


def test_at_the_default_budget_every_fault_is_tried_once_on_every_network() -> None:
    tried = [each for each in Plan(seeds=(7, 3)).cases() if each.frugal]
    assert sorted((fault, arch) for fault in REGISTRY for arch in zoo_plan.archs()) == sorted(
        (each.what, each.arch) for each in tried
    )
    assert {7} == {each.seed for each in tried}
    compared = [each.steps for each in tried if each.baseline]
    assert (8, {zoo_plan.STEPS}) == (len(compared), set(compared))
    assert not [each for each in Plan(frugal=False).cases() if each.frugal]


def test_the_default_budget_has_much_less_read(tmp_path: Path) -> None:
    case = Case("", "gpt", "bf16", "adamw", steps=150)
    (tmp_path / "dense").mkdir()
    (tmp_path / "frugal").mkdir()
    dense = zoo_runs.run(case, tmp_path / "dense", anomaly=False)
    frugal = zoo_runs.run(msgspec.structs.replace(case, frugal=True), tmp_path / "frugal", anomaly=False)
    assert 149 == sum("grad_agreement" in row.columns for row in dense.rows)
    assert 0 < sum("grad_agreement" in row.columns for row in frugal.rows) < 120


def test_what_the_default_budget_costs_is_shown_beside_what_is_reached_where_all_is_read() -> None:
    broken = [judged(*GOOD), judged(finding("scale-collapse", 24, module="blocks.1.mlp"))]
    frugal = [judged(finding("scale-collapse", 220), case=msgspec.structs.replace(CASE, frugal=True)), judged()]
    told = zoo_tables.at_default_budget(Measured(broken, [], [], 1.0, frugal))
    assert ("`scale-collapse`", "1 of 2", "200, 200", "2.5, 4") == told[1][:4]


def test_the_seeds_can_be_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    plans: list[Plan] = []

    def measure(plan: Plan, *_: object) -> Measured:
        plans.append(plan)
        return measured([], [])

    monkeypatch.setattr(zoo, "measure", measure)
    for words in ([], ["--seeds", "8", "6", "8"], ["--seeds", "8", "6", "--quick"]):
        zoo.main(words)
    assert [(0, 1, 2), (8, 6), (8,)] == [each.seeds for each in plans]
    assert {8, 6} == {each.seed for each in Plan(seeds=plans[1].seeds, only=["scale"]).cases()}


def test_quick_numbers_are_not_kept_among_the_results(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        zoo.main(["--quick", "--write"])
    assert "name another folder" in capsys.readouterr().err


def test_the_zoo_at_its_smallest_finds_a_fault_and_leaves_the_healthy_alone(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["--quick", "--only", "nonfinite-gradient,fused", "--write", str(tmp_path)]
    words += ["--go-on", str(tmp_path / "kept")]
    ran = subprocess.run(
        [sys.executable, "-m", "bench.zoo", *words], cwd=ROOT, capture_output=True, text=True, timeout=240
    )
    assert 0 == ran.returncode, ran.stdout + ran.stderr
    told = json.loads((tmp_path / "zoo.json").read_text())
    assert {("nonfinite-gradient", True)} == {(each["first"], each["culprit"]) for each in told["broken"]}
    assert zoo_plan.archs() == [each["case"]["arch"] for each in told["broken"]]
    assert {"", "a fused optimizer"} == {each["case"].get("what", "") for each in told["healthy"]}
    assert all([] == each["pages"] + each["tickets"] for each in told["healthy"])
    assert "| ammeter | 2 of 2 (100.0 %) |" in readme.table(tmp_path / "zoo.md")
    assert ANOMALY in {eye for each in told["broken"] for eye in each["others"]}
    assert 0 == zoo.main(words)  # goes on where nothing is left to train
    assert "seed 0:" not in capsys.readouterr().out

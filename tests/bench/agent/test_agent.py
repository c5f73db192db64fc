"""bench/agent at tiny sizes: what they compare, count and write; no number is judged here."""

from __future__ import annotations

import json
import math
import random
import re
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from statistics import mean, median, stdev
from typing import Any

import pytest
import torch
from rich.console import Console

from bench.agent import __main__ as agent
from bench.agent import comparison as measuring
from bench.agent import gpu, peers
from bench.agent import report as tables
from bench.agent.comparison import Effort, Missing, Outcome, compare
from bench.agent.peers import Gives, Nothing, Peer
from bench.agent.training import Kind, Training
from bench.common import readme
from bench.common.paths import ROOT
from bench.common.trainer import Shape

SHAPE = Shape(vocabulary=32, context=8, layers=1, heads=2, width=8)
TINY = {precision: Kind(precision, SHAPE, batch=2, threads=1) for precision in ("bf16", "fp16", "fp32")}
PLAN = replace(
    agent.QUICK, long=(TINY["bf16"], TINY["fp16"]), others=(TINY["bf16"],), short=(TINY["fp32"],), short_steps=2
)
OF_TORCH = (peers.Norms, peers.DetectAnomaly, peers.EmptyHooks, peers.AbsmaxHooks)
"""Those that need no package."""


@pytest.fixture(autouse=True)
def _threads_as_before() -> Any:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


class Counting(Peer):
    name = "counting"
    gives = Gives("each step")

    def __init__(self, training: Training, folder: Path) -> None:
        super().__init__(training, folder)
        self.gradients_seen = self.steps_seen = 0

    def gradients(self) -> None:
        assert all(each.grad is not None for each in self.training.model.parameters())
        self.gradients_seen += 1

    def stepped(self, loss: torch.Tensor) -> None:
        self.steps_seen += 1

    def close(self) -> dict[str, float]:
        return {"gradients": self.gradients_seen, "steps": self.steps_seen}


class CountingOfItsOwn(Counting):
    name = "counting on a model of its own"
    own = True
    period = 20


class NotInstalled(Peer):
    name = "not installed"

    def __init__(self, training: Training, folder: Path) -> None:
        raise ModuleNotFoundError("No module named 'wandb'", name="wandb")


class Ordered(Peer):
    """Notes in ORDER when a block of its begins."""

    def attach(self) -> None:
        ORDER.append(self.name)


class First(Ordered):
    name = "first"


class Second(Ordered):
    name = "second"


ORDER: list[str] = []


class Aborting(Peer):
    name = "aborting"

    def stepped(self, loss: torch.Tensor) -> None:
        raise ValueError("inf/nan detected, aborting")


def compared(kinds: Sequence[type[Peer]], kind: Kind = TINY["bf16"]) -> list[Outcome | Missing]:
    return compare(kind, kinds, Effort(pairs=4, steps=3))


@pytest.fixture
def one_to_settle(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a block's first steps one does not count, however short it is."""
    monkeypatch.setattr(measuring, "SETTLING", 0.0)


@pytest.mark.usefixtures("one_to_settle")
def test_a_peer_is_called_at_the_steps_of_its_own_blocks_only() -> None:
    (found,) = compared([Counting])
    assert isinstance(found, Outcome)
    assert {"gradients": 24, "steps": 24} == found.said  # 2 pairs to warm up and 4, of 3 steps and one to settle
    assert (4, 4) == (len(found.bare), len(found.watched))
    assert min(*found.bare, *found.watched) > 0


@pytest.mark.usefixtures("one_to_settle")
def test_when_the_time_is_up_what_was_measured_until_then_counts() -> None:
    (found,) = compare(TINY["bf16"], [Counting], Effort(pairs=4, steps=3, until=time.monotonic()))
    assert isinstance(found, Outcome)
    assert {"gradients": 4, "steps": 4} == found.said
    assert (1, 1) == (len(found.bare), len(found.watched))


@pytest.mark.usefixtures("one_to_settle")
def test_a_peer_that_works_now_and_then_is_measured_over_two_of_its_periods() -> None:
    (found,) = compared([CountingOfItsOwn])
    assert isinstance(found, Outcome)
    assert {"gradients": 66, "steps": 66} == found.said  # 4 blocks of 10 steps count, and 2 to warm up


def test_what_a_block_begins_with_does_not_count_for_some_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measuring, "SETTLING", 0.05)
    training = Training(TINY["bf16"])
    settled = time.perf_counter() + 0.05
    seconds = measuring.seconds_per_step(training, 1)
    assert settled + seconds <= time.perf_counter()
    assert training._done >= 2


def test_peers_that_are_not_there_or_give_up_are_left_out_by_name_and_the_others_measured() -> None:
    missing, aborted, there = compared([NotInstalled, Aborting, Counting])
    assert Missing("not installed", "wandb is not installed") == missing
    assert Missing("aborting", "ValueError: inf/nan detected, aborting") == aborted
    assert isinstance(there, Outcome)


def test_one_after_the_other_each_peer_follows_a_bare_block_or_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bench.agent.comparison.seconds_per_step", _bare_unless_just_attached)
    ORDER.clear()
    compare(TINY["bf16"], [First, Second], Effort(pairs=2, steps=1))
    rounds = 2 * ["bare", "first", "bare", "second", "second", "bare", "first", "bare"]
    assert rounds == ORDER


def _bare_unless_just_attached(training: Training, steps: int) -> float:
    if training.peer is None:
        ORDER.append("bare")
    return 1.0


def test_peers_that_take_turns_are_measured_equally_often_when_the_time_is_up(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter(range(1000))
    monkeypatch.setattr("bench.agent.comparison.time.monotonic", lambda: next(clock))
    monkeypatch.setattr("bench.agent.comparison.seconds_per_step", lambda training, steps: 1.0)
    found = compare(TINY["bf16"], [First, Second], Effort(pairs=9, steps=1, until=5))
    assert [4, 4] == [len(each.bare) for each in found if isinstance(each, Outcome)]


def test_the_ratio_is_that_of_a_typical_pair_and_a_rare_heavy_block_shows_in_the_means() -> None:
    outcome = Outcome("x", Gives(), False, [1.0, 1.0, 2.0, 2.0, 4.0], [1.1, 1.1, 2.2, 6.0, 4.4])
    assert pytest.approx(1.1) == outcome.ratio
    assert pytest.approx(1.48) == outcome.mean_ratio
    assert pytest.approx([1.1, 1.1, 1.1, 3.0, 1.1]) == outcome.pairs


def drifting(seed: int, cost: float, pairs: int = 18) -> Outcome:
    """Neighbouring blocks, in turns bare and watched first, on a machine that wanders and is disturbed now and then."""
    chance, pace = random.Random(seed), 0.0
    blocks = []
    for _ in range(2 * pairs):
        pace += chance.gauss(0, 0.03)
        disturbed = chance.expovariate(5) if chance.random() < 0.05 else 0.0
        blocks.append(math.exp(pace + chance.gauss(0, 0.01)) * (1 + disturbed))
    both = [blocks[at : at + 2][:: -1 if at % 4 else 1] for at in range(0, len(blocks), 2)]
    return Outcome("x", Gives(), False, [bare for bare, _ in both], [watched * cost for _, watched in both])


@pytest.mark.parametrize("cost", [1.0, 1.02, 1.5])
def test_on_a_machine_that_drifts_the_ratio_centres_on_the_cost_and_wavers_less_than_others(cost: float) -> None:
    measured = [drifting(seed, cost) for seed in range(600)]
    ratios = [each.ratio / cost for each in measured]
    others = (
        [median(each.watched) / median(each.bare) / cost for each in measured],
        [each.mean_ratio / cost for each in measured],
    )
    assert pytest.approx(1, abs=4 * stdev(ratios) / math.sqrt(600)) == mean(ratios)
    assert 0.011 > stdev(ratios)
    assert 1.5 * stdev(ratios) < min(map(stdev, others))


@pytest.mark.parametrize("precision", ["bf16", "fp16"])
def test_every_peer_that_needs_no_package_is_measured(precision: str) -> None:
    found = compared(OF_TORCH, TINY[precision])
    assert [each.name for each in OF_TORCH] == [each.name for each in found if isinstance(each, Outcome)]
    assert not torch.is_anomaly_enabled()


def test_each_preset_says_what_it_costs_and_reads_what_it_promises() -> None:
    said = {each.name: each.said for each in compared(peers.PRESETS, TINY["fp32"]) if isinstance(each, Outcome)}
    assert {each.name for each in peers.PRESETS} == set(said)
    assert all(0 < each["overhead"] < 1 and 0 < each["mean_overhead"] < 1 for each in said.values())
    assert (1, 1) == (said[peers.AmmeterFull.name]["norms"], said[peers.AmmeterFull.name]["statistics"])
    assert 0 == said[peers.AmmeterLight.name]["statistics"]


def test_what_a_plan_measures_is_written_as_tables_and_json_and_the_first_table_is_the_readmes(tmp_path: Path) -> None:
    measured = agent.measure(PLAN, ["ammeter", "do nothing"], Console(quiet=True))
    tables.write(measured, tmp_path, "make bench")
    result = json.loads((tmp_path / "agent.json").read_text())
    for name in (Nothing.name, "ammeter"):
        assert [2, 2, 1] == [len(each["repeats"][name]) for each in result["sections"]]
    names = [each["name"] for each in result["sections"][0]["outcomes"]]
    presets = [Nothing.name, "ammeter", "ammeter, preset light", "ammeter, preset full"]
    assert [*presets, "module hooks that do nothing"] == names
    assert presets == [each["name"] for each in result["sections"][2]["outcomes"]]
    assert [6, 6, 3] == [len(each["bare_seconds"]) for each in result["sections"][0]["outcomes"][:3]]  # two repeats
    text = (tmp_path / "agent.md").read_text()
    first = readme.table(tmp_path / "agent.md").splitlines()
    assert 2 + len(names) == len(first)
    for name, row in ((Nothing.name, first[2]), ("ammeter", first[3])):
        assert re.fullmatch(
            rf"\| {re.escape(name)} \|.*\| \d\.\d{{3}} \(2 repeats: \d\.\d{{3}} to \d+\.\d{{3}}\) \|", row
        )
        assert f"{name}: 2 independent repeats" in text
    assert "## Short steps: fp32" in text


def test_what_the_time_does_not_suffice_for_is_left_out_by_name() -> None:
    measured = agent.measure(replace(PLAN, repeats=1, minutes=0.0), ["preset"], Console(quiet=True))
    assert 3 == len(measured.sections)
    assert all([] == each.outcomes for each in measured.sections)
    assert "bf16, 1,464 weights: left out: ammeter, preset light: the time was up." in tables.remarks(measured)


def test_ammeter_is_measured_before_others_have_threads_in_the_process() -> None:
    phases = [each.peers for each in agent.planned(agent.Plan(), [""])]
    ours = phases[: -2 * len(peers.OTHERS)]
    assert 5 * [[Nothing, peers.Ammeter]] == ours[:5]
    assert {Nothing, *peers.PRESETS} == {each for phase in ours for each in phase}
    assert 2 * [[each] for each in peers.OTHERS] == phases[-2 * len(peers.OTHERS) :]


@pytest.mark.parametrize("words", [[""], ["ammeter"], ["ammeter", "nothing"]])
def test_nothing_is_measured_first_and_as_often_as_the_default_preset(words: list[str]) -> None:
    with_default = [each for each in agent.planned(agent.Plan(), words) if peers.Ammeter in each.peers]
    with_nothing = [each for each in agent.planned(agent.Plan(), words) if Nothing in each.peers]
    assert with_default == with_nothing
    assert [2 * 5 * [Nothing], 3 * [Nothing]] == [
        [each.peers[0] for each in with_nothing if each.short is short] for short in (False, True)
    ]


def test_a_peer_that_works_now_and_then_gets_time_for_its_periods() -> None:
    phases = {each.peers[0]: each for each in agent.planned(agent.Plan(), ["wandb"])}
    each_step, now_and_then = phases[peers.Wandb], phases[peers.Wandb100]
    assert 2 * 100 <= now_and_then.effort.watched_steps(peers.Wandb100) * now_and_then.effort.pairs
    assert now_and_then.weight > each_step.weight


def test_quick_numbers_are_not_kept_among_the_results(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        agent.main(["--quick", "--write"])
    assert "name another folder" in capsys.readouterr().err


def test_every_package_that_is_compared_with_has_its_version() -> None:
    pinned = (ROOT / "bench" / "requirements.txt").read_text().splitlines()
    versions = dict(line.split("==") for line in pinned if not line.startswith("#"))
    assert {"wandb", "tensorboard", "transformers", "mlflow-skinny"} <= set(versions)


def test_the_gpu_script_refuses_politely_where_there_is_no_gpu(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert 1 == gpu.main([])
    assert "no CUDA device" in capsys.readouterr().out


def test_the_parts_of_the_gpu_script_write_one_result(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "gpu.md"
    assert 0 == gpu.main(["--cpu", "--only", "cost,kernel", "--out", str(out)]), capsys.readouterr().out
    text = out.read_text()
    assert ["cost", "kernel"] == [name for name, part in gpu.PARTS.items() if f"## {part.title}\n" in text]
    assert {"ammeter", "ammeter, preset full", "module hooks that do nothing", "ammeter, norms"} <= set(
        re.findall(r"^\| ([^|]+?) \|", text, re.MULTILINE)
    )


def test_a_part_that_hangs_is_ended_and_what_it_said_is_kept(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    script = tmp_path / "hangs.py"
    script.write_text("import time\nprint('measured so far', flush=True)\nwhile True: time.sleep(1)\n")
    monkeypatch.setattr(gpu, "COMMAND", [sys.executable, str(script)])
    ended, said = gpu.run("cost", cpu=True, seconds=6)
    assert ("it took longer than 6 s", "measured so far") == (ended, said)


def test_a_part_that_fails_says_why_and_the_next_one_still_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        gpu, "run", lambda name, cpu: ("it ended with 1", "no memory") if name == "cost" else ("", "|x|")
    )
    out = tmp_path / "gpu.md"
    assert 1 == gpu.main(["--cpu", "--only", "cost,kernel", "--out", str(out)])
    text = out.read_text()
    assert "no memory" in text
    assert "**This part failed: it ended with 1.**" in text
    assert "|x|" in text


def test_the_parts_of_the_gpu_script_together_take_less_than_eight_minutes() -> None:
    assert 480 > sum(part.seconds for part in gpu.PARTS.values())

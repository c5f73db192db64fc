"""ranks-disagree compares the weights of replicas: it finds where they part, and leaves separate models alone."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from ammeter.report.diagnosis import Report, diagnose
from ammeter.verdicts.framework.finding import Finding
from tests.agent.stream_builder import Stream
from tests.agent.verdicts.processes.test_ranks_disagree import Ranks, change_models, judged, last, seen
from tests.ranks import run as run_on_ranks

Value = Callable[[int, int], float]
"""A value of a rank at a step."""


def equal(rank: int, step: int) -> float:
    return 5.0 + step


def parting(at: int, by: float = 0.01, lone: int = 1) -> Value:
    """Weights of one rank that differ after step `at`."""
    return lambda rank, step: equal(rank, step) * (1 + by * (rank == lone and step > at))


def replicas(
    checksum: Value,
    norm: Value = lambda rank, step: 1.0,
    count: int = 2,
    steps: int = 60,
    every: int = 4,
    fingerprint: Value | None = None,
) -> Ranks:
    """Ranks whose weights are read every few steps, and their gradients at each step."""
    made = {rank: Stream(world_size=count) for rank in range(count)}
    for rank, stream in made.items():
        for step in range(steps):
            read = {"weights_checksum": checksum(rank, step)} if step % every == 0 else {}
            if read and fingerprint is not None:
                read["weights_fingerprint"] = fingerprint(rank, step)
            stream.good(norm=norm(rank, step), **read)
    return made


def findings(made: Ranks, cuts: Sequence[int] = ()) -> list[Finding]:
    return judged(seen(made, cuts))[1]


def test_weights_that_differ_twice_in_a_row_are_a_page_with_the_step_that_parted_them() -> None:
    finding = last(replicas(parting(21), lambda rank, step: 1 + 0.1 * rank * (step == 21)))
    assert ("page", 21, 28, (0, 1)) == (finding.severity, finding.first_step, finding.opened_step, finding.ranks)
    assert "The weights of the ranks differ" == finding.title
    assert "equal before step 20 and different before step 24 and later" in finding.cause
    assert "At step 21, the norms of their gradients differ: 1 to 1.1." in finding.cause
    assert "before step 21 on all ranks" in finding.fix


def test_without_norms_it_begins_at_the_first_different_reading() -> None:
    finding = last(replicas(parting(21)))
    assert (24, 28, None) == (finding.first_step, finding.opened_step, finding.evidence["grad_norms"])


def test_a_difference_that_is_too_small_for_the_checksum_is_not_called_equal() -> None:
    def bits(rank: int, step: int) -> float:
        return 100.0 * step + rank * (step >= 16)

    finding = last(replicas(parting(24), fingerprint=bits))
    assert "were equal before step 12 and different before step 28 and later" in finding.cause
    assert 12 == finding.evidence["weights_equal_before_step"]
    assert 24 == last(replicas(parting(24))).evidence["weights_equal_before_step"]


def test_bits_that_differ_from_the_first_update_on_are_the_rounding_of_other_hardware() -> None:
    made = replicas(lambda rank, step: equal(rank, step) * (1 + 1e-7 * rank), fingerprint=lambda rank, step: 1.0 + rank)
    assert [] == findings(made)


def test_weights_that_were_only_nearly_equal_are_not_called_equal() -> None:
    def drifting(rank: int, step: int) -> float:
        return equal(rank, step) * (1 + (0.01 if step > 21 else 4e-6) * rank)

    finding = last(replicas(drifting))
    assert "differed by less than 1e-05 of their checksum before step 20, and more before step 24" in finding.cause
    assert (None, 20) == tuple(finding.evidence[f"weights_{how}_before_step"] for how in ("equal", "nearly_equal"))


def test_of_three_ranks_the_one_that_is_alone_is_named() -> None:
    finding = last(replicas(parting(9, lone=2), count=3))
    assert ("Rank 2 has other weights than the other ranks", (2,)) == (finding.title, finding.ranks)


def test_norms_that_differ_before_the_reduction_prove_nothing() -> None:
    assert [] == findings(replicas(equal, lambda rank, step: 1 + rank))
    finding = last(replicas(parting(21), lambda rank, step: 1 + rank))
    assert (24, None) == (finding.first_step, finding.evidence["grad_norms"])


def test_ranks_that_start_equal_and_never_meet_again_are_a_ticket_after_40_steps() -> None:
    assert [] == findings(replicas(parting(0), steps=40))
    finding = last(replicas(parting(0), lambda rank, step: 1 + 0.1 * rank))
    assert ("ticket", 0, 40) == (finding.severity, finding.first_step, finding.opened_step)
    assert "The ranks no longer have the same weights" == finding.title
    assert "AMMETER_SILENCE=ranks-disagree" in finding.fix


@pytest.mark.parametrize("interval", [8, 12, 16, 32])
def test_weights_that_are_averaged_now_and_then_are_fine(interval: int) -> None:
    def averaged(rank: int, step: int) -> float:
        return equal(rank, step) * (1 + 0.01 * rank * (step % interval > 0))

    assert [] == findings(replicas(averaged, lambda rank, step: 1 + rank, steps=200))


def test_weights_that_are_averaged_after_a_ticket_close_it_without_a_page() -> None:
    def averaged(rank: int, step: int) -> float:
        return equal(rank, step) * (1 + 0.01 * rank * (step % 100 > 0))

    finding = last(replicas(averaged, lambda rank, step: 1 + rank, steps=300))
    assert ("ticket", 40, 96) == (finding.severity, finding.opened_step, finding.last_step)
    assert "equal before step 0, but before step 4 and in every comparison until step 96 they differ" in finding.cause
    assert 0 == finding.evidence["weights_equal_before_step"]


def post_local(interval: int, start: int = 40) -> tuple[Value, Value]:
    """Weights and norms of ranks that share gradients until `start`, and then average weights now and then."""

    def checksum(rank: int, step: int) -> float:
        return equal(rank, step) * (1 + 0.01 * rank * (step > start and (step - start) % interval > 0))

    return checksum, lambda rank, step: 1 + 0.1 * rank * (step >= start)


@pytest.mark.parametrize("interval", [16, 32])
def test_weights_that_are_averaged_after_a_phase_with_shared_gradients_are_fine(interval: int) -> None:
    assert [] == findings(replicas(*post_local(interval), steps=200))


def test_weights_that_are_averaged_rarely_after_such_a_phase_are_no_page() -> None:
    found = findings(replicas(*post_local(100), steps=300))
    assert {"ticket"} == {finding.severity for finding in found}
    assert "No equal gradients were read since then" in found[-1].cause
    assert "If the ranks average their weights at times" in found[-1].fix


def test_gradients_that_are_shared_again_by_different_weights_turn_the_ticket_into_a_page() -> None:
    made = replicas(parting(20), lambda rank, step: 1 + 0.1 * rank * (20 <= step < 70), steps=120)
    found = findings(made, range(0, 122, 10))
    assert ("ticket", "page") == (found[0].severity, found[-1].severity)
    assert (20, 60) == (found[-1].first_step, found[-1].opened_step)


def test_ranks_that_share_gradients_and_start_from_other_weights_are_a_page() -> None:
    finding = last(replicas(lambda rank, step: 5.0 + rank + step))
    assert ("page", 0, 4) == (finding.severity, finding.first_step, finding.opened_step)
    assert "dist.broadcast" in finding.fix


def test_ranks_with_models_of_their_own_are_left_alone() -> None:
    assert [] == findings(replicas(lambda rank, step: 5.0 + rank + step, lambda rank, step: 1 + 0.2 * rank + step))


def test_a_few_equal_norms_at_the_start_are_no_shared_gradients() -> None:
    made = replicas(lambda rank, step: 5.0 + rank + step, lambda rank, step: 1.0 + step + 0.2 * rank * (step >= 3))
    assert [] == findings(made)


@pytest.mark.parametrize("change", ["sharded", "other"])
def test_parts_of_a_model_and_other_models_are_left_alone(change: str) -> None:
    made = replicas(parting(21))
    change_models(made, change)
    assert [] == findings(made)


def test_rounding_of_other_hardware_is_no_difference() -> None:
    assert [] == findings(replicas(parting(0, by=1e-6)))
    assert [] == findings(replicas(lambda rank, step: equal(rank, step) * (1 + 1e-7 * rank * (step // 8))))


def test_a_small_difference_in_weights_that_had_equal_bits_is_one() -> None:
    finding = last(replicas(parting(21, by=2e-6)))
    assert ("page", 24, 28) == (finding.severity, finding.first_step, finding.opened_step)


@pytest.mark.parametrize("cut", [1, 3, 10, 25])
def test_it_is_the_same_for_every_division_of_the_streams(cut: int) -> None:
    def norm(rank: int, step: int) -> float:
        return 1 + 0.1 * rank * (step == 21)

    whole, pieces = (judged(seen(replicas(parting(21), norm), cuts)) for cuts in ((), range(0, 62, cut)))
    assert (whole[0], whole[1][-1]) == (pieces[0], pieces[1][-1])


PROGRAM = """
import sys, torch, ammeter
import torch.distributed as dist
dist.init_process_group("gloo")
torch.manual_seed(3)
rank = dist.get_rank()
network = torch.nn.Sequential(torch.nn.Conv1d(2, 16, 3), torch.nn.GELU(), torch.nn.Flatten(), torch.nn.Linear(96, 8))
optimizer = torch.optim.Adam(network.parameters(), lr=0.001)
ammeter.watch(network, optimizer)
draw = torch.Generator().manual_seed(rank)
for step in range(60):
    optimizer.zero_grad(set_to_none=True)
    network(torch.randn(4, 2, 8, generator=draw)).square().mean().backward()
    if sys.argv[1] == "forgotten" or (sys.argv[1] == "once" and step == 30):
        pass
    else:
        flat = torch.nn.utils.parameters_to_vector([weight.grad for weight in network.parameters()])
        work = dist.all_reduce(flat, async_op=True)
        work.wait()
        begin = 0
        for weight in network.parameters():
            weight.grad.copy_(flat[begin : begin + weight.numel()].view_as(weight)).div_(2)
            begin += weight.numel()
    optimizer.step()
    if sys.argv[1] == "reversed" and step == 30 and rank == 1:
        with torch.no_grad():
            network[3].weight.copy_(network[3].weight.flip(0))
dist.destroy_process_group()
"""


def report_of(folder: Path, *words: str, **settings: str) -> Report:
    (folder / "program.py").write_text(PROGRAM)
    environment = {**os.environ, "AMMETER_DIR": str(folder / "runs"), **settings}
    run_on_ranks([sys.executable, folder / "program.py", *words], 2, env=environment, timeout=120)
    (run,) = (folder / "runs").iterdir()
    return diagnose(run)


@pytest.mark.parametrize(("how", "expected"), [("once", ("page", 30)), ("forgotten", ("ticket", 0)), ("always", None)])
def test_real_ranks_with_a_reduction_of_their_own(how: str, expected: Any, tmp_path: Path) -> None:
    found = [entry.finding for entry in report_of(tmp_path, how).findings if entry.finding.verdict == "ranks-disagree"]
    assert ([expected] if expected else []) == [(finding.severity, finding.first_step) for finding in found]


def test_weights_in_another_order_differ_although_their_sum_is_the_same(tmp_path: Path) -> None:
    (finding,) = (entry.finding for entry in report_of(tmp_path, "reversed").findings)
    assert ("ranks-disagree", "page") == (finding.verdict, finding.severity)
    assert 30 < finding.first_step < 60

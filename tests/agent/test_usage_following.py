"""Which steps are followed call by call, and that what begins late is told as well."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from ammeter.probes.usage.following import AFTER_A_SKIP, ALL, Following
from tests.agent.training import watching


def followed(steps: range, skipped: int = -1) -> list[int]:
    following, found = Following(), []
    for step in steps:
        if following.at(step):
            found.append(step)
        if step == skipped:
            following.closely(step)
    return found


def test_the_first_steps_are_all_followed_and_of_the_later_ones_a_quarter() -> None:
    assert list(range(ALL)) == followed(range(ALL))
    assert 0.2 < len(followed(range(ALL, 20_000))) / (20_000 - ALL) < 0.3


def test_a_step_and_the_next_one_are_followed_together() -> None:
    found = set(followed(range(ALL, 5000)))
    assert {step ^ 1 for step in found} == found


@pytest.mark.parametrize("rhythm", [2, 3, 4, 5, 8, 10, 16, 32, 50, 64, 100])
def test_no_rhythm_of_a_program_hides_behind_it(rhythm: int) -> None:
    found = set(followed(range(ALL, 20_000)))
    for offset in range(rhythm):
        assert found & set(range(ALL + offset, ALL + 40 * rhythm, rhythm))


def test_what_follows_a_skipped_step_is_followed() -> None:
    for skipped in range(1000, 1016):
        later = set(range(skipped + 1, skipped + 1 + AFTER_A_SKIP))
        assert later <= set(followed(range(990, 1100), skipped))


def test_that_the_next_step_is_followed_is_known_before() -> None:
    following = Following()
    for step in range(ALL, 2000):
        following.at(step)
        assert following.soon == (following.now or Following().at(step + 1))


@pytest.mark.parametrize("mistake", ["not scaled", "not reset", "kept after a skip"])
def test_a_mistake_that_begins_late_is_told_within_a_few_steps(mistake: str, tmp_path: Path) -> None:
    torch.manual_seed(0)
    model, begins = torch.nn.Linear(12, 2), ALL + 44
    scales = torch.amp.GradScaler("cpu", init_scale=2.0**10)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-5)
    with watching(tmp_path, model, optimizer, scales) as seen:
        for step in range(begins + 40):
            late, before = step >= begins, scales.get_scale()
            if not (late and mistake == "not reset"):
                optimizer.zero_grad()
            loss = model(torch.randn(8, 12)).square().mean() * (float("inf") if mistake[:4] == "kept" and late else 1)
            (loss if late and mistake == "not scaled" else scales.scale(loss)).backward()
            scales.step(optimizer)
            scales.update()
            if mistake[:4] == "kept" and scales.get_scale() < before:
                break
        if mistake[:4] == "kept":
            for _ in range(3):
                scales.scale(model(torch.randn(8, 12)).square().mean()).backward()
                scales.step(optimizer)
                scales.update()
    kind = "loss_not_scaled" if mistake == "not scaled" else "gradients_not_reset"
    assert [kind] == list(seen.usage())
    assert begins <= seen.events(f"usage.{kind}")[0].step <= begins + 24

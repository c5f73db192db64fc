from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import Any

import pytest
import torch

import ammeter
from ammeter import guards
from ammeter.guards import checkpoint_writer
from ammeter.report import diagnosis
from tests.agent.guarded import Net, poison, train


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_it_keeps_the_last_complete_checkpoints_private_and_names_the_newest(tmp_path: Path) -> None:
    guard = guards.Checkpoint(every_steps=10, keep=2)
    outcome = train(tmp_path, [guard], steps=45)
    folder = tmp_path / outcome.run / "checkpoints"
    assert ["step-00000030.pt", "step-00000040.pt"] == sorted(path.name for path in folder.iterdir())
    assert folder / "step-00000040.pt" == guard.latest()
    assert (0o700, 0o600) == (mode(folder), mode(folder / "step-00000040.pt"))
    assert [("wrote", 9), ("wrote", 19), ("wrote", 29), ("wrote", 39)] == outcome.actions()


def test_what_it_reads_back_of_its_own_is_told_as_no_resume(tmp_path: Path) -> None:
    outcome = train(tmp_path, [guards.Checkpoint(every_steps=5)], steps=25)
    found = {finding.finding.verdict for finding in diagnosis.diagnose(tmp_path / outcome.run).findings}
    assert "resume-mismatch" not in found


def test_a_run_that_goes_on_from_it_is_the_run_that_was_interrupted(tmp_path: Path) -> None:
    def adam(weights: Any) -> torch.optim.Optimizer:
        return torch.optim.AdamW(weights, lr=1e-2)

    options: dict[str, Any] = {"optimizer": adam, "scaler": {"init_scale": 64.0, "growth_interval": 7}}
    guard = guards.Checkpoint(every_steps=10)
    train(tmp_path, [guard], steps=25, **options)
    saved = torch.load(str(guard.latest()), weights_only=True)

    def go_on(step: int, net: Any, optimizer: Any, scaler: Any) -> None:
        if step == 0:
            net.load_state_dict(saved["models"][0])
            optimizer.load_state_dict(saved["optimizers"][0])
            scaler.load_state_dict(saved["scalers"][0])
            torch.set_rng_state(saved["random"]["torch"])

    assert 20 == saved["step"]
    assert train(None, steps=40, **options).state == train(None, steps=20, before=go_on, **options).state


def test_other_parts_of_the_program_are_kept_as_well(tmp_path: Path) -> None:
    net = Net()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 2)
    guard = guards.Checkpoint(every_steps=5, dir=tmp_path / "kept", parts={"scheduler": scheduler})
    run = ammeter.watch(net, optimizer, dir=tmp_path, guards=[guard])
    for _ in range(6):
        optimizer.zero_grad()
        net(torch.ones(1, 6)).sum().backward()
        optimizer.step()
        scheduler.step()
    run.close()
    assert tmp_path / "kept" / "step-00000005.pt" == guard.latest()
    saved = torch.load(str(guard.latest()), weights_only=True)
    assert 5 == saved["parts"]["scheduler"]["last_epoch"]  # it has moved on for the fifth step, too
    assert (1, []) == (len(saved["models"]), saved["scalers"])


def test_minutes_count_as_well_as_steps(tmp_path: Path) -> None:
    outcome = train(tmp_path, [guards.Checkpoint(every_minutes=1e-9)], steps=4)
    assert [("wrote", step) for step in range(3)] == outcome.actions()


def test_what_a_checkpoint_of_the_program_lacks_is_told_once_and_nothing_is_written(tmp_path: Path) -> None:
    def before(step: int, net: Any, optimizer: Any, scaler: Any) -> None:
        if step in (10, 15):
            torch.save(net.state_dict(), tmp_path / f"{step}.pt")

    guard = guards.Checkpoint()
    outcome = train(tmp_path / "journals", [guard], before=before)
    assert ["found incomplete"] == [action for action, _ in outcome.actions()]
    assert f"{tmp_path}/10.pt lacks optimizer, scaler" == outcome.acted[0]["reason"]
    assert guard.latest() is None
    assert not list((tmp_path / "journals" / outcome.run).glob("checkpoints*"))


def test_an_export_beside_a_complete_checkpoint_lacks_nothing(tmp_path: Path) -> None:
    def before(step: int, net: Any, optimizer: Any, scaler: Any) -> None:
        if step == 10:
            state = {"model": net.state_dict(), "optimizer": optimizer.state_dict(), "scaler": scaler.state_dict()}
            torch.save(state, tmp_path / "mine.pt")
            torch.save(net.state_dict(), tmp_path / "export.pt")

    assert [] == train(tmp_path / "journals", [guards.Checkpoint()], before=before).actions()


def test_a_complete_checkpoint_of_the_program_is_named_where_it_wrote_none(tmp_path: Path) -> None:
    def before(step: int, net: Any, optimizer: Any, scaler: Any) -> None:
        if step == 10:
            state = {"model": net.state_dict(), "optimizer": optimizer.state_dict(), "scaler": scaler.state_dict()}
            torch.save(state, tmp_path / "mine.pt")

    guard = guards.Checkpoint()
    train(tmp_path / "journals", [guard], before=before)
    assert tmp_path / "mine.pt" == guard.latest()


def test_poisoned_weights_are_not_written_and_a_stopped_run_is_sent_to_the_last_good_ones(tmp_path: Path) -> None:
    guard = guards.Checkpoint(every_steps=9)
    outcome = train(tmp_path, [guard, guards.Stop(["scale-collapse"])], before=poison(25), steps=60)
    assert tmp_path / outcome.run / "checkpoints" / "step-00000018.pt" == guard.latest()
    assert [("wrote", 8), ("wrote", 17), ("did not write", 26)] == outcome.actions("checkpoint")
    assert "not finite, loud.mix.weight first" in outcome.acted[2]["reason"]
    assert isinstance(outcome.raised, ammeter.Stopped)
    assert str(guard.latest()) == outcome.raised.checkpoint


def test_the_run_does_not_end_by_a_folder_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    outcome = train(tmp_path, [guards.Checkpoint(every_steps=10, dir=tmp_path / "file" / "here")])
    assert {"could not write"} == {action for action, _ in outcome.actions()}
    assert train(None).state == outcome.state


class Odd:
    """A part whose state is more than plain data."""

    def state_dict(self) -> dict[str, Any]:
        return {"self": self}


def test_what_cannot_be_read_back_safely_leaves_no_file(tmp_path: Path) -> None:
    guard = guards.Checkpoint(every_steps=10, dir=tmp_path / "kept", parts={"odd": Odd()})
    outcome = train(tmp_path, [guard])
    assert "could not write" == outcome.actions()[0][0]
    assert "weights_only=True does not load it" in outcome.acted[0]["reason"]
    assert [] == list((tmp_path / "kept").iterdir())


def test_a_file_that_comes_back_with_other_numbers_does_not_take_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "kept" / "one.pt"
    checkpoint_writer.write(path, {"weight": torch.ones(3)})
    loaded = torch.load
    monkeypatch.setattr(torch, "load", lambda *args, **options: {"weight": loaded(*args, **options)["weight"] + 1})
    with pytest.raises(checkpoint_writer.Unreadable, match="the values that were read back differ"):
        checkpoint_writer.write(path, {"weight": torch.zeros(3)})
    monkeypatch.undo()
    assert torch.equal(torch.ones(3), torch.load(path)["weight"])
    assert ["one.pt"] == os.listdir(path.parent)


def test_every_number_name_and_kind_is_in_the_checksum() -> None:
    state: dict[str, Any] = {
        "half": torch.ones(2, dtype=torch.bfloat16),
        "scalar": torch.tensor(3),
        "complex": torch.ones(2, dtype=torch.complex64),
        "list": [1, 2.5, None, ("a",)],
    }
    sums = [checkpoint_writer.checksum(state)]
    for name, other in {
        "half": torch.ones(2, dtype=torch.float16),
        "scalar": torch.tensor(4),
        "complex": torch.ones(2, 1, dtype=torch.complex64),
        "list": [1, 2.5, None, ("b",)],
    }.items():
        sums.append(checkpoint_writer.checksum({**state, name: other}))
    assert 5 == len(set(sums))
    assert sums[0] == checkpoint_writer.checksum(dict(state))


def test_of_several_ranks_the_first_one_writes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    for rank, written in (("0", 2), ("1", 0)):
        monkeypatch.setenv("RANK", rank)
        assert written == len(train(tmp_path / rank, [guards.Checkpoint(every_steps=10)]).actions())

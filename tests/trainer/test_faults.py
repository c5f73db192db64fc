from __future__ import annotations

import functools
import itertools
import math
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import mean
from typing import Any, cast

import pytest
import torch

import faults
import faults_values
import train
from breaking import as_large_models_have_it, middle_block
from tests import forked
from tests.trainer.conftest import TRAINER, Seen, Trains

pytestmark = pytest.mark.long

SMALLEST_NORMAL = 2.0**-14  # of float16
STEPS = 60


def shows_overflow_storm(run: train.Summary, seen: Seen) -> None:
    skips = [after < before for before, after in zip(seen.scales, seen.scales[1:], strict=False)]
    assert 0.6 < sum(skips[20:]) / len(skips[20:]) < 0.7
    assert 2.5 > seen.losses[0] - seen.losses[-1] > 0.2  # it learns, only slowly


def shows_scale_collapse(run: train.Summary, seen: Seen) -> None:
    assert (20, STEPS) == (run.applied, run.steps)
    assert [65536.0 * 2.0**-n for n in range(STEPS - 20 + 1)] == seen.scales[19:]
    assert all(map(math.isfinite, seen.losses))
    assert {path(seen, middle_block(seen.model).mixes, "weight"): {3}} == bad_rows(seen.gradients[20])
    assert {} == bad_rows(seen.gradients[19])


def shows_nonfinite_loss(run: train.Summary, seen: Seen) -> None:
    assert all(map(math.isfinite, seen.losses[:20]))
    assert all(map(math.isnan, seen.losses[20:]))
    assert run.applied == run.steps
    assert seen.share(lambda gradient: gradient == 0, first_step=20) == 1.0


def shows_nonfinite_gradient(run: train.Summary, seen: Seen) -> None:
    """NaN in all that comes before the gate, nothing in what comes after it: the frontier names the gate."""
    assert 20 == run.applied
    assert all(map(math.isfinite, seen.losses))
    names = [name for name, _ in seen.model.named_parameters()]
    before = names[: names.index("blocks.1.mlp.proj.weight")]
    assert set(before) == bad_rows(seen.gradients[20]).keys()
    assert {} == bad_rows(seen.gradients[19])


def shows_gradient_underflow(run: train.Summary, seen: Seen) -> None:
    assert [1.0] * STEPS == seen.scales
    shows_lost_gradients(run, seen)


def shows_no_loss_scaling(run: train.Summary, seen: Seen) -> None:
    assert seen.scaler is None
    assert run.scale is None
    shows_lost_gradients(run, seen)


def shows_lost_gradients(run: train.Summary, seen: Seen) -> None:
    assert run.applied == run.steps
    assert seen.share(lambda gradient: gradient == 0) > 0.4
    assert seen.share(lambda gradient: gradient.abs() < SMALLEST_NORMAL) > 0.99
    assert run.val_loss > healthy(seen).val_loss + 0.2


def shows_clip_before_unscale(run: train.Summary, seen: Seen) -> None:
    assert run.applied >= run.steps - 1
    assert abs(mean(seen.losses[:10]) - mean(seen.losses[-10:])) < 0.1
    assert healthy(seen, "--optimizer", "sgd").val_loss < mean(seen.losses[-10:]) - 1


def shows_loss_not_scaled(run: train.Summary, seen: Seen) -> None:
    shows_clip_before_unscale(run, seen)
    assert 1.0 == seen.share(lambda gradient: gradient.abs() < 16)  # a scaled one reaches thousands


def shows_gradients_not_unscaled(run: train.Summary, seen: Seen) -> None:
    assert run.applied >= run.steps - 1
    assert all(map(math.isfinite, seen.losses[:20]))
    assert all(map(math.isnan, seen.losses[25:]))


def shows_mixed_scale_gradients(run: train.Summary, seen: Seen) -> None:
    assert run.applied == run.steps
    assert run.val_loss > healthy(seen).val_loss + 0.3


def shows_update_between_optimizers(run: train.Summary, seen: Seen) -> None:
    """41 good steps in a row are due before the scale grows; it has grown within the 21st."""
    assert [65536.0] * 20 + [131072.0] == seen.scales[:21]


def shows_gradients_not_reset(run: train.Summary, seen: Seen) -> None:
    assert (20, STEPS) == (run.applied, run.steps)
    assert [65536.0] * 20 + [2.0 ** (25 - n) for n in range(STEPS - 20)] == seen.scales
    assert all(map(math.isfinite, seen.losses))
    assert {} != bad_rows(seen.gradients[-1])


def shows_lopsided_step(run: train.Summary, seen: Seen) -> None:
    """The first optimizer, which the trainer counts, has made every step; the scale says that something was skipped."""
    assert run.applied == run.steps
    assert [512.0] * 29 + [1024.0] + [512.0] * 29 == seen.scales[:59]
    assert {"head.weight"} == bad_rows(seen.gradients[30]).keys()
    assert {} == bad_rows(seen.gradients[29]) | bad_rows(seen.gradients[31])


def shows_scaler_disabled(run: train.Summary, seen: Seen) -> None:
    assert not seen.scaler.is_enabled()
    assert {} == seen.scaler.state_dict()
    shows_lost_gradients(run, seen)


def shows_pointless_scaler(run: train.Summary, seen: Seen) -> None:
    assert [65536.0] * STEPS == seen.scales
    assert run.val_loss == pytest.approx(healthy(seen, "--precision", "bf16").val_loss, abs=0.05)


def shows_scaler_not_restored(run: train.Summary, seen: Seen) -> None:
    with tempfile.TemporaryDirectory() as folder:
        kept = ["--tiny", *same_network(seen), "--checkpoint", f"{folder}/run.pt"]
        train.main([*kept, "--steps", "2"])
        state = torch.load(f"{folder}/run.pt", weights_only=True)
        state["parts"]["scaler"]["scale"] = 1024.0
        torch.save(state, f"{folder}/run.pt")
        assert 65536.0 == train.main([*kept, "--steps", "4", "--resume", "--fault", "scaler-not-restored"]).scale
        torch.save(state, f"{folder}/run.pt")
        assert 1024.0 == train.main([*kept, "--steps", "4", "--resume"]).scale


def shows_scaler_rebuilt(run: train.Summary, seen: Seen) -> None:
    assert 0 == healthy(seen).steps - healthy(seen).applied
    assert 4 <= run.steps - run.applied <= 10
    assert run.scale == 2.0 ** (24 - run.steps + run.applied)


def shows_ranks_disagree(run: train.Summary, seen: Seen) -> None:
    assert run.val_loss == healthy(seen).val_loss  # alone nothing is amiss
    broken = faults.Faults(faults.REGISTRY["ranks-disagree"], 0, seen.model, None, rank=1)
    broken.begin(0)
    for each in seen.model.parameters():
        each.grad = torch.ones_like(each)
    broken.attempt(train.attempt)(seen.model, torch.optim.SGD(seen.model.parameters()), None, 1.0)
    assert not next(seen.model.parameters()).isfinite().all()
    assert train.attempt is broken.attempt(train.attempt)  # once


def shows_slower_than_fp32(run: train.Summary, seen: Seen) -> None:
    assert torch.is_anomaly_enabled()
    torch.autograd.set_detect_anomaly(False)
    assert run.val_loss == healthy(seen, "--precision", "bf16").val_loss


def shows_validation_drift(run: train.Summary, seen: Seen) -> None:
    assert run.applied == run.steps
    assert run.val_loss < seen.losses[0] - 0.05  # it learns, and slowly
    assert run.val_loss > healthy(seen, "--precision", "fp32").val_loss + 0.2


def shows_not_comparable(run: train.Summary, seen: Seen) -> None:
    assert run.val_loss == healthy(seen, "--precision", "bf16").val_loss
    assert ("--precision", "fp32", "--batch", "2") == faults.REGISTRY["not-comparable"].against


def shows_not_reproducible(run: train.Summary, seen: Seen) -> None:
    losses = seen.losses
    assert trained(seen).val_loss == pytest.approx(run.val_loss, abs=0.01)
    same = [mine == other for mine, other in zip(losses, stand_in().losses, strict=True)]
    assert all(same[:5])
    assert not all(same)


def shows_scheduler_ahead(run: train.Summary, seen: Seen) -> None:
    skipped = sum(after < before for before, after in zip(seen.scales, seen.scales[1:], strict=False))
    assert 16 <= run.steps - run.applied <= 30
    assert skipped <= run.steps - run.applied
    assert run.val_loss > healthy(seen).val_loss


def shows_half_master_weights(run: train.Summary, seen: Seen) -> None:
    weights = dict(seen.model.named_parameters())
    assert {torch.bfloat16} == {each.dtype for each in weights.values()}
    gains = torch.cat([each for name, each in weights.items() if "norm" in name and name.endswith("weight")])
    assert (gains == 1).float().mean() > 0.95
    assert run.val_loss > healthy(seen, "--precision", "bf16").val_loss


def shows_agent_blind(run: train.Summary, seen: Seen) -> None:
    assert (run.applied, run.val_loss) == ((other := healthy(seen)).applied, other.val_loss)
    assert all(isinstance(number, int) for number in seen.samples[:20])
    with pytest.raises(ReferenceError):
        float(seen.samples[20])


def shows_fp32_fallback(run: train.Summary, seen: Seen) -> None:
    first, middle = (block.mlp for block in seen.model.blocks)
    assert (torch.float16, torch.float32) == (below_autocast(first, seen).dtype, below_autocast(middle, seen).dtype)
    shows_what_a_healthy_run_learns(run, seen)


def shows_misaligned_matmul(run: train.Summary, seen: Seen) -> None:
    part, weight = {"gpt": (seen.model.head, [131, 32]), "cnn": (seen.model.blocks[1].mlp, [67, 16, 1, 1])}[arch(seen)]
    assert weight in [shape for each in profiled(part, seen).events() for shape in each.input_shapes]
    shows_what_a_healthy_run_learns(run, seen)


def shows_cast_churn(run: train.Summary, seen: Seen) -> None:
    first, middle = (block.mlp for block in seen.model.blocks)
    positions = {"gpt": 32, "cnn": 8}[arch(seen)]
    assert [5, 5 * positions] == [casts(first, seen), casts(middle, seen)]
    shows_what_a_healthy_run_learns(run, seen)


def shows_stale_stack(run: train.Summary, seen: Seen) -> None:
    assert "2.1.2" == torch.__version__
    shows_what_a_healthy_run_learns(run, seen)


def shows_what_a_healthy_run_learns(run: train.Summary, seen: Seen) -> None:
    assert healthy(seen).val_loss == pytest.approx(run.val_loss, abs=0.05)


def below_autocast(module: torch.nn.Module, seen: Seen) -> torch.Tensor:
    """What it makes of four windows of 32 positions, or of eight images."""
    shape = {"gpt": (4, 32, 32), "cnn": (8, 16, 8, 8)}[arch(seen)]
    with torch.autocast("cpu", torch.float16):
        made = module(torch.ones(shape))
    assert isinstance(made, torch.Tensor)
    return made


def profiled(module: torch.nn.Module, seen: Seen) -> Any:
    """The operators of one forward pass."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], record_shapes=True) as profile:
        below_autocast(module, seen)
    return profile


def casts(module: torch.nn.Module, seen: Seen) -> int:
    """To half precision, while it runs once."""
    return sum(each.count for each in profiled(module, seen).key_averages() if each.key == "aten::_to_copy")


def shows_nonfinite_weights(run: train.Summary, seen: Seen) -> None:
    assert 20 == run.applied
    assert all(map(math.isfinite, seen.losses[:20]))
    assert all(map(math.isnan, seen.losses[20:]))
    bad = {name: int((~each.isfinite()).sum()) for name, each in seen.model.named_parameters()}
    assert {"blocks.1.mlp.fc.weight": 1} == {name: count for name, count in bad.items() if count}


def shows_scale_underflowed(run: train.Summary, seen: Seen) -> None:
    assert 21 == run.applied  # one step too many
    assert all(map(math.isfinite, seen.losses[:21]))
    assert all(map(math.isnan, seen.losses[21:]))
    assert not any(each.isfinite().any() for each in seen.model.parameters())


def shows_checkpoint_exposed(run: train.Summary, seen: Seen) -> None:
    saved = saved_with(seen, "checkpoint-exposed")
    assert (0o666, 0o755) == (saved.stat().st_mode & 0o777, saved.parent.stat().st_mode & 0o777)
    assert run.val_loss == healthy(seen).val_loss


def shows_checkpoint_incomplete(run: train.Summary, seen: Seen) -> None:
    assert ["model"] == list(torch.load(saved_with(seen, "checkpoint-incomplete"), weights_only=True)["parts"])
    assert run.val_loss == healthy(seen).val_loss


def shows_gradient_spike(run: train.Summary, seen: Seen) -> None:
    trained(seen, "--fault", "gradient-spike@50", "--precision", "bf16")
    norms = [float(torch.stack([each.norm() for each in step.values()]).norm()) for step in stand_in().gradients]
    assert min(norms[50:54]) > 20 * max(norms[:50])
    assert max(norms[54:]) < 20 * max(norms[:50])
    assert max(stand_in().losses[51:58]) > stand_in().losses[49] + 0.2


def shows_resume_mismatch(run: train.Summary, seen: Seen) -> None:
    assert run.val_loss == healthy(seen).val_loss
    whole, forgot = (resumed(seen, *words) for words in ((), ("--fault", "resume-mismatch")))
    assert whole[: STEPS + 1] == forgot[: STEPS + 1]
    assert max(abs(each - other) for each, other in zip(whole[STEPS:], forgot[STEPS:], strict=True)) > 1e-3


def resumed(seen: Seen, *words: str) -> list[float]:
    """The losses of two lives of one run."""
    vars(train)["ammeter"] = Seen()
    path = Path(tempfile.mkdtemp()) / "run.pt"
    for more in ((), ("--steps", "80", "--resume")):
        trained(seen, "--checkpoint", str(path), *words, *more)
    return stand_in().losses


def stand_in() -> Seen:
    """What the last run told instead of Ammeter."""
    return cast(Seen, vars(train)["ammeter"])


def saved_with(seen: Seen, fault: str) -> Path:
    """What a run with this fault keeps. The folder is private, whatever the fault makes of the one below."""
    path = Path(tempfile.mkdtemp()) / "kept" / "run.pt"
    trained(seen, "--fault", fault, "--checkpoint", str(path))
    return path


def shows_sign_flip(run: train.Summary, seen: Seen) -> None:
    trained(seen, "--fault", "sign-flip@20", "--batch", "16")
    assert turned(stand_in()) < -0.25
    trained(seen, "--batch", "16")
    assert turned(stand_in()) > -0.1


def turned(seen: Seen) -> float:
    """The cosine between the gradients of two neighbouring steps, late in the run, in the middle."""
    late = [torch.cat([each.flatten() for each in step.values()]) for step in seen.gradients[-20:]]
    pairs = itertools.pairwise(late)
    return float(torch.stack([torch.cosine_similarity(*pair, dim=0) for pair in pairs]).median())


def shows_stagnation(run: train.Summary, seen: Seen) -> None:
    assert run.applied >= run.steps - 1
    assert abs(mean(seen.losses[:10]) - mean(seen.losses[-10:])) < 0.1
    assert seen.share(lambda gradient: gradient.abs() > 1) > 0.01  # scaled, as they are in a healthy run
    assert healthy(seen).val_loss < mean(seen.losses[-10:]) - 0.5


def shows_checkpoint_stale(run: train.Summary, seen: Seen) -> None:
    assert run.val_loss == healthy(seen).val_loss
    path = Path(tempfile.mkdtemp()) / "kept" / "run.pt"
    trained(seen, "--fault", "checkpoint-stale", "--checkpoint", str(path), "--checkpoint-every", "15")
    assert 15 == torch.load(path, weights_only=True)["progress"]["step"]
    before, began = time.time_ns(), time.perf_counter_ns()
    assert time.time_ns() - before >= 1000 * (time.perf_counter_ns() - began)


def shows_lost_updates(run: train.Summary, seen: Seen) -> None:
    """An average that is a tenth away from its weights does not come nearer."""
    assert healthy(seen).val_loss == run.val_loss
    average = faults_values.Average(seen.model)
    average.update_parameters(seen.model)
    before = [each.clone() for each in average.parameters()]
    with torch.no_grad():
        for each in seen.model.parameters():
            each.mul_(1.1)
    for _ in range(100):
        average.update_parameters(seen.model)
    assert all(map(torch.equal, before, average.parameters()))


def shows_half_optimizer_state(run: train.Summary, seen: Seen) -> None:
    states = [state for each in seen.optimizers for state in each.state.values()]
    kept = [each for state in states for each in state.values() if each.dim()]
    assert {torch.bfloat16} == {each.dtype for each in kept}
    assert run.val_loss != healthy(seen).val_loss


def shows_masked_row_nan(run: train.Summary, seen: Seen) -> None:
    nan_from_step_20(run, seen)


def nan_from_step_20(run: train.Summary, seen: Seen) -> None:
    assert 20 == run.applied
    assert all(map(math.isfinite, seen.losses[:20]))
    assert not any(map(math.isfinite, seen.losses[20:]))
    assert all(each.isfinite().all() for each in seen.model.parameters())


def shows_activation_overflow(run: train.Summary, seen: Seen) -> None:
    nan_from_step_20(run, seen)


def shows_eps_underflow(run: train.Summary, seen: Seen) -> None:
    assert math.isfinite(seen.losses[0])
    assert all(each.isfinite().all() for each in seen.gradients[0].values())
    assert all(map(math.isnan, seen.losses[1:]))


SYMPTOMS: dict[str, Callable[[train.Summary, Seen], None]] = {
    name.removeprefix("shows_").replace("_", "-"): shows
    for name, shows in list(globals().items())
    if name.startswith("shows_") and name not in ("shows_lost_gradients", "shows_what_a_healthy_run_learns")
}
SURVIVED = [name for name in faults.REGISTRY if name not in ("run-lost", "run-stalled", "unsupported-op")]


@pytest.fixture(autouse=True)
def _own_temporary_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))


def healthy(seen: Seen, *arguments: str) -> train.Summary:
    """What becomes of the same network, unbroken."""
    return unbroken(arch(seen), *arguments)


@functools.cache
def unbroken(*arguments: str) -> train.Summary:
    return train.main(["--tiny", "--steps", str(STEPS), "--arch", *arguments])


def trained(seen: Seen, *arguments: str) -> train.Summary:
    """What becomes of another run of the same network."""
    return train.main(["--tiny", "--steps", str(STEPS), *same_network(seen), *arguments])


def arch(seen: Seen) -> str:
    return str(seen.watched["config"]["arch"])


def same_network(seen: Seen) -> tuple[str, str]:
    return "--arch", arch(seen)


def path(seen: Seen, module: torch.nn.Module, weight: str) -> str:
    """The weight's name in the whole network."""
    return next(f"{name}.{weight}" for name, each in seen.model.named_modules() if each is module)


def bad_rows(gradients: dict[str, torch.Tensor]) -> dict[str, set[int]]:
    """The weights whose gradient is not finite, and the rows where."""
    bad = {name: {int(at[0]) for at in (~gradient.isfinite()).nonzero()} for name, gradient in gradients.items()}
    return {name: rows for name, rows in bad.items() if rows}


@pytest.mark.parametrize("arch", ["gpt", "cnn"])
@pytest.mark.parametrize("name", SURVIVED)
def test_every_fault_shows_its_symptom(
    name: str, arch: str, seen: Seen, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run = train.main(["--tiny", "--arch", arch, "--steps", str(STEPS), "--fault", name])
    model, scaler = seen.model, seen.scaler
    monkeypatch.setattr(train, "ammeter", Seen())  # for the healthy run it is compared with
    SYMPTOMS[name](run, seen)
    assert (model, scaler) == (seen.model, seen.scaler)


@pytest.mark.parametrize("name", faults.REGISTRY)
def test_every_fault_says_what_a_person_sees(name: str) -> None:
    story = faults.REGISTRY[name].story
    assert story[0].isupper()
    assert story.endswith(".")
    assert len(story) > 80


@pytest.mark.parametrize("arch", ["gpt", "cnn"])
@pytest.mark.parametrize("name", SURVIVED)
def test_a_fault_does_nothing_before_its_step(
    name: str, arch: str, seen: Seen, monkeypatch: pytest.MonkeyPatch
) -> None:
    fault = faults.REGISTRY[name]
    same = [
        "--tiny",
        "--arch",
        arch,
        "--steps",
        "5",
        "--optimizer",
        fault.optimizers[0],
        "--precision",
        fault.precisions[0],
    ]
    train.main(same)
    broken = Seen()
    monkeypatch.setattr(train, "ammeter", broken)
    train.main([*same, "--fault", f"{name}@5"])
    assert seen.losses == broken.losses


@pytest.mark.parametrize("name", SURVIVED)
@pytest.mark.parametrize("precision", ["fp16", "bf16", "fp32"])
@pytest.mark.parametrize("arch", ["gpt", "cnn"])
def test_a_fault_runs_with_every_precision_it_names_and_refuses_the_others(
    name: str, arch: str, precision: str, tiny: Trains, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["--arch", arch, "--steps", "3", "--fault", f"{name}@1", "--precision", precision]
    if precision in faults.REGISTRY[name].precisions:
        assert 3 == tiny(*arguments).steps
    else:
        with pytest.raises(SystemExit):
            tiny(*arguments)
        fits = " or ".join(faults.REGISTRY[name].precisions)
        assert f"--fault is '{name}', which --precision {precision} cannot have; use {fits}." in capsys.readouterr().err


@pytest.mark.parametrize("arch", ["gpt", "cnn"])
def test_what_stands_for_a_large_model_is_no_fault_by_itself(
    arch: str, tiny: Trains, seen: Seen, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = tiny("--arch", arch, "--steps", str(STEPS)).val_loss
    monkeypatch.setitem(
        faults.REGISTRY, "large", faults.Fault("large", as_large_models_have_it, 0, ("fp16",), ("adamw",))
    )
    monkeypatch.setattr(train, "ammeter", Seen())
    assert plain == pytest.approx(tiny("--arch", arch, "--steps", str(STEPS), "--fault", "large").val_loss, abs=0.1)


@pytest.mark.parametrize("arch", ["gpt", "cnn"])
def test_without_a_scaler_a_nan_born_in_backward_is_in_the_weights_a_step_later(
    arch: str, tiny: Trains, seen: Seen
) -> None:
    run = tiny("--arch", arch, "--precision", "bf16", "--fault", "nonfinite-gradient@4", "--steps", "6")
    assert 6 == run.applied
    assert [True] * 5 + [False] == [math.isfinite(loss) for loss in seen.losses]


@pytest.mark.parametrize("arch", ["gpt", "cnn"])
@pytest.mark.parametrize("precision", ["fp16", "bf16"])
def test_an_unsupported_operator_ends_the_run_at_its_step(precision: str, arch: str, tiny: Trains, seen: Seen) -> None:
    arguments = ("--arch", arch, "--precision", precision, "--steps", "6", "--fault", "unsupported-op@4")
    with pytest.raises(RuntimeError, match="to have the same dtype"):
        tiny(*arguments)
    assert 4 == len(seen.losses)


def test_a_lost_run_is_killed_at_its_step_without_a_word() -> None:
    command = [sys.executable, str(TRAINER / "train.py"), "--tiny", "--log-every", "1", "--fault", "run-lost@3"]
    environment = os.environ | {"AMMETER_DISABLE": "1", "OMP_NUM_THREADS": "1"}
    run = forked.run(command, env=environment, capture_output=True, timeout=60)
    assert -signal.SIGKILL == run.returncode
    assert run.stdout.splitlines()[-1].startswith("step   3/200")
    assert "" == run.stderr


def test_a_stalled_run_makes_its_last_step_and_stays() -> None:
    program = [sys.executable, "-u", str(TRAINER / "train.py")]
    command = [*program, "--tiny", "--log-every", "1", "--fault", "run-stalled@3"]
    environment = os.environ | {"AMMETER_DISABLE": "1", "OMP_NUM_THREADS": "1"}
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as run:
        assert run.stdout
        assert any(line.startswith("step   3/200") for line in run.stdout)
        with pytest.raises(subprocess.TimeoutExpired):
            run.wait(1)
        run.kill()
        assert [] == [line for line in run.stdout if line.startswith("step")]

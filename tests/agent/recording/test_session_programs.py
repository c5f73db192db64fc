"""Watching beside what programs do themselves: profilers, modes, patches, checkpoints, any optimizer and scaler."""

from __future__ import annotations

import copy
import io
import pickle
import subprocess
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode

import ammeter
from ammeter.torch_hooks import patch
from ammeter.wire.columns import View, measured
from tests.agent.training import events, stream


class Trained:
    """What a loop leaves: its weights, and what the journal says when it was watched."""

    def __init__(self, model: torch.nn.Module, run: ammeter.Run, folder: Path) -> None:
        self.weights = [parameter.tolist() for parameter in model.parameters()]
        self.id, self._folder = run.id, folder

    def rows(self) -> View:
        rows, frames = stream(self.id, self._folder)
        assert [] == events(frames, "probe.failed")
        return rows


Loop = Callable[[torch.nn.Module, Any, Any], None]


def _train(
    folder: Path,
    loop: Loop,
    *,
    watched: bool = True,
    optimizer: Callable[..., Any] = lambda parameters: torch.optim.SGD(parameters, lr=0.1),
    scaler: Callable[[], Any] = lambda: torch.amp.GradScaler("cpu", init_scale=64.0),
) -> Trained:
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(4, 6), torch.nn.Tanh(), torch.nn.Linear(6, 2))
    stepper, scaling = optimizer(model.parameters()), scaler()
    run = ammeter.watch(model, stepper, scaling, dir=folder) if watched else ammeter.Run()
    try:
        loop(model, stepper, scaling)
    finally:
        run.close()
    return Trained(model, run, folder)


def _amp_step(model: torch.nn.Module, optimizer: Any, scaler: Any, spoil: float = 1.0) -> None:
    optimizer.zero_grad()
    scaler.scale(model(torch.ones(3, 4)).square().mean() * spoil).backward()
    scaler.step(optimizer)
    scaler.update()


def _eight(model: torch.nn.Module, optimizer: Any, scaler: Any) -> None:
    """Eight steps, of which the third and the fourth overflow."""
    for index in range(8):
        _amp_step(model, optimizer, scaler, float("inf") if index in (2, 3) else 1.0)


def _same(folder: Path, loop: Loop, **parts: Any) -> View:
    """The rows of a watched loop that left the same bits as the bare one."""
    bare, watched = _train(folder, loop, watched=False, **parts), _train(folder, loop, **parts)
    assert bare.weights == watched.weights
    return watched.rows()


OPTIMIZERS: dict[str, Callable[..., Any]] = {
    "fused AdamW": lambda parameters: torch.optim.AdamW(parameters, lr=0.1, fused=True),
    "fused SGD": lambda parameters: torch.optim.SGD(parameters, lr=0.1, momentum=0.9, fused=True),
    "foreach AdamW": lambda parameters: torch.optim.AdamW(parameters, lr=0.1, foreach=True),
    "foreach SGD": lambda parameters: torch.optim.SGD(parameters, lr=0.1, foreach=True),
}


@pytest.mark.parametrize("clip", [None, 0.5])
@pytest.mark.parametrize("kind", OPTIMIZERS)
def test_a_skip_and_the_unscaled_norm_are_known_for_every_kind_of_optimizer(
    kind: str, clip: float | None, tmp_path: Path
) -> None:
    norms: list[float] = []

    def loop(model: torch.nn.Module, optimizer: Any, scaler: Any) -> None:
        norms.clear()
        for index in range(8):
            optimizer.zero_grad()
            spoil = float("inf") if index in (2, 3) else 1.0
            scaler.scale(model(torch.ones(3, 4)).square().mean() * spoil).backward()
            gradients = [parameter.grad for parameter in model.parameters() if parameter.grad is not None]
            scaled = torch.cat([gradient.reshape(-1) for gradient in gradients])
            norms.append(float(scaled.double().norm()) / scaler.get_scale())
            if clip:
                scaler.unscale_(optimizer)
                torch.nn.utils.clip_grad_norm_(model.parameters(), clip)
            scaler.step(optimizer)
            scaler.update()

    rows = _same(tmp_path, loop, optimizer=OPTIMIZERS[kind])
    assert [0.0, 0.0, 1.0, 1.0, 0.0, 0.0, 0.0, 0.0] == rows.scalar("skipped").tolist()
    assert [1.0, 1.0, 0.0, 0.0, 1.0, 1.0, 1.0, 1.0] == rows.scalar("applied").tolist()
    good = np.isfinite(norms)
    assert np.array(norms)[good] == pytest.approx(rows.scalar("grad_norm")[good], rel=1e-5)
    assert not np.isfinite(rows.scalar("grad_norm")[~good]).any()


class WithSuper(torch.amp.GradScaler):
    def scale(self, outputs: Any) -> Any:
        return super().scale(outputs)

    def unscale_(self, optimizer: Any) -> None:
        super().unscale_(optimizer)

    def step(self, optimizer: Any, *args: Any, **kwargs: Any) -> Any:
        return super().step(optimizer, *args, **kwargs)

    def update(self, new_scale: Any = None) -> None:
        super().update(new_scale)


class WithoutSuper(torch.amp.GradScaler):
    """Updates by rules of its own, as sharded scalers do."""

    def update(self, new_scale: Any = None) -> None:
        found = sum(
            float(number)
            for state in self._per_optimizer_states.values()
            for number in state["found_inf_per_device"].values()
        )
        assert self._scale is not None
        self._scale.mul_(0.25 if found else 1.0)
        self._per_optimizer_states.clear()


class Bare(torch.amp.GradScaler):
    pass


@pytest.mark.parametrize(
    ("kind", "scales"), [(WithSuper, [64, 32, 16]), (WithoutSuper, [64, 16, 4]), (Bare, [64, 32, 16])]
)
def test_a_scaler_of_the_programs_own_class_counts_once(kind: Any, scales: list[float], tmp_path: Path) -> None:
    rows = _same(tmp_path, _eight, scaler=lambda: kind("cpu", init_scale=64.0))
    first, second, third = scales
    assert [first, first, first, second, third, third, third, third] == rows.scalar("scale").tolist()
    assert [0.0, 0.0, 1.0, 1.0, 0.0, 0.0, 0.0, 0.0] == rows.scalar("skipped").tolist()
    assert [1.0] * 8 == rows.scalar("micro_batches").tolist()
    assert measured(rows.scalar("loss")).all()
    assert rows.scalar("grad_norm")[0] < 10
    _, frames = stream(_train(tmp_path, _eight, scaler=lambda: kind("cpu", init_scale=64.0)).id, tmp_path)
    assert [first, second] == [event.data["from"] for event in events(frames, "scaler.backoff")]


def test_a_scaler_that_watch_was_not_told_of_is_seen_at_its_first_use(tmp_path: Path) -> None:
    def loop(model: torch.nn.Module, optimizer: Any, scaler: Any) -> None:
        _eight(model, optimizer, torch.amp.GradScaler("cpu", init_scale=64.0))

    trained = _train(tmp_path, loop, scaler=lambda: None)
    _, frames = stream(trained.id, tmp_path)
    seen = [(event.step, event.data) for event in events(frames, "scaler.seen")]
    assert [(0, {"enabled": True, "device": "cpu", "scale": 64.0})] == seen
    assert measured(trained.rows().scalar("scale")).all()


def test_a_disabled_scaler_in_bfloat16_has_no_scale_and_right_norms(tmp_path: Path) -> None:
    def loop(model: torch.nn.Module, optimizer: Any, scaler: Any) -> None:
        for _ in range(3):
            optimizer.zero_grad()
            with torch.autocast("cpu", torch.bfloat16):
                loss = model(torch.ones(3, 4)).float().square().mean()
            scaler.scale(loss).backward()
            scaler.unscale_(optimizer)
            norms.append(float(torch.nn.utils.clip_grad_norm_(model.parameters(), 1e9)))
            scaler.step(optimizer)
            scaler.update()

    norms: list[float] = []
    rows = _same(tmp_path, loop, scaler=lambda: torch.amp.GradScaler("cpu", enabled=False))
    assert norms[:3] == pytest.approx(rows.scalar("grad_norm").tolist(), rel=1e-5)
    assert not measured(rows.scalar("scale")).any()


def test_two_scalers_each_unscale_their_own_optimizer(tmp_path: Path) -> None:
    torch.manual_seed(0)
    models = [torch.nn.Linear(3, 1) for _ in range(2)]
    optimizers = [torch.optim.SGD(model.parameters(), lr=1e-3) for model in models]
    scalers = [torch.amp.GradScaler("cpu", init_scale=scale) for scale in (2.0, 1024.0)]
    run = ammeter.watch(models, optimizers, scalers, dir=tmp_path)
    expected: list[float] = []
    for _ in range(3):
        squares = 0.0
        for model, optimizer, scaler in zip(models, optimizers, scalers, strict=True):
            optimizer.zero_grad()
            scaler.scale(model(torch.ones(2, 3)).square().mean()).backward()
            scaler.unscale_(optimizer)
            squares += float(torch.nn.utils.clip_grad_norm_(model.parameters(), 1e9)) ** 2
            scaler.step(optimizer)
            scaler.update()
        expected.append(squares**0.5)
    run.close()
    rows, _ = stream(run.id, tmp_path)
    assert expected == pytest.approx(rows.scalar("grad_norm").tolist(), rel=1e-5)


def test_an_optimizer_without_the_scaler_is_not_divided_by_a_scale_of_another_step(tmp_path: Path) -> None:
    def loop(model: torch.nn.Module, optimizer: Any, scaler: Any) -> None:
        _amp_step(model, optimizer, scaler)
        optimizer.zero_grad()
        model(torch.ones(3, 4)).square().mean().backward()
        norms.append(float(torch.nn.utils.clip_grad_norm_(model.parameters(), 1e9)))
        optimizer.step()

    norms: list[float] = []
    rows = _same(tmp_path, loop)
    assert norms[0] == pytest.approx(float(rows.scalar("grad_norm")[1]), rel=1e-5)


def test_a_skipped_step_shows_the_gradients_as_they_were_before_the_clip_spoilt_them(tmp_path: Path) -> None:
    def loop(model: torch.nn.Module, optimizer: Any, scaler: Any) -> None:
        for index in range(3):
            optimizer.zero_grad()
            scaler.scale(model(torch.ones(3, 4)).square().mean()).backward()
            if index == 1:
                model[2].weight.grad[0, 0] = float("inf")  # type: ignore[index]
            scaler.unscale_(optimizer)
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            scaler.step(optimizer)
            scaler.update()

    trained = _train_starved(tmp_path, loop)
    _, frames = stream(trained.id, tmp_path)
    (told,) = events(frames, "gradient.nonfinite")
    assert [{"tensor": "2.weight", "nans": 0, "infs": 1}] == told.data["tensors"]
    assert 1 == told.data["finite_after"]


def _train_starved(folder: Path, loop: Loop) -> Trained:
    """Trains while the governor allows no reading that it may refuse."""

    def starved(model: torch.nn.Module, optimizer: Any, scaler: Any) -> None:
        from ammeter.recording import session

        (here,) = [active for active in session._sessions if not active.off]
        here.governor.norms.cost = here.governor.full.cost = 1e9
        loop(model, optimizer, scaler)

    return _train(folder, starved)


@pytest.mark.parametrize("value", [1e25, 1e-28])
def test_gradients_whose_squares_leave_float32_are_large_or_small_but_not_broken(value: float, tmp_path: Path) -> None:
    parameter = torch.nn.Parameter(torch.ones(10))
    optimizer = torch.optim.SGD([parameter], lr=0.0)
    run = ammeter.watch(torch.nn.ParameterList([parameter]), optimizer, dir=tmp_path)
    for _ in range(30):
        parameter.grad = torch.full((10,), value)
        optimizer.step()
    run.close()
    rows, frames = stream(run.id, tmp_path)
    assert [] == events(frames, "gradient.nonfinite")
    assert [value * 10**0.5] * 30 == pytest.approx(rows.scalar("grad_norm").tolist(), rel=1e-5)


def test_a_scheduler_around_the_optimizer_changes_nothing(tmp_path: Path) -> None:
    def loop(model: torch.nn.Module, optimizer: Any, scaler: Any) -> None:
        schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.5)
        for _ in range(4):
            _amp_step(model, optimizer, scaler)
            schedule.step()

    assert [1.0] * 4 == _same(tmp_path, loop).scalar("applied").tolist()


class Seen(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.calls: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.calls.append(str(func))
        return func(*args, **(kwargs or {}))


class Asked(TorchFunctionMode):
    def __init__(self) -> None:
        super().__init__()
        self.calls: list[str] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.calls.append(getattr(func, "__name__", repr(func)))
        return func(*args, **(kwargs or {}))


def test_a_dispatch_mode_of_the_program_sees_the_program_only(tmp_path: Path) -> None:
    calls: list[list[str]] = []

    def loop(model: torch.nn.Module, optimizer: Any, scaler: Any) -> None:
        _amp_step(model, optimizer, scaler)
        with Seen() as mode:
            _eight(model, optimizer, scaler)
        calls.append(mode.calls)

    assert 9 == len(_same(tmp_path, loop))
    assert calls[0] == calls[1]


def test_a_flop_counter_of_the_program_counts_the_program_only(tmp_path: Path) -> None:
    flops: list[int] = []

    def loop(model: torch.nn.Module, optimizer: Any, scaler: Any) -> None:
        with FlopCounterMode(display=False) as counter:
            _eight(model, optimizer, scaler)
        flops.append(counter.get_total_flops())

    _same(tmp_path, loop)
    assert flops[0] == flops[1] > 0


def test_under_a_function_mode_and_another_default_device_a_run_is_the_same(tmp_path: Path) -> None:
    def loop(model: torch.nn.Module, optimizer: Any, scaler: Any) -> None:
        with Asked(), torch.device("cpu"):
            _eight(model, optimizer, scaler)

    assert 8 == len(_same(tmp_path, loop))


def test_steps_of_fake_tensors_are_not_read_and_real_ones_behind_them_are(tmp_path: Path) -> None:
    from torch._subclasses.fake_tensor import FakeTensorMode

    def loop(model: torch.nn.Module, optimizer: Any, scaler: Any) -> None:
        with FakeTensorMode():
            twin = torch.nn.Linear(4, 1)
            twin(torch.ones(2, 4)).sum().backward()
            torch.optim.SGD(twin.parameters(), lr=1.0).step()
        _eight(model, optimizer, scaler)

    rows = _same(tmp_path, loop)
    assert 8 == len(rows)
    assert measured(rows.scalar("loss")).all()


def test_an_optimizer_that_steps_inside_backward_is_not_the_watched_one(tmp_path: Path) -> None:
    def loop(model: torch.nn.Module, optimizer: Any, scaler: Any) -> None:
        def apply(parameter: torch.Tensor) -> None:
            torch.optim.SGD([parameter], lr=0.01).step()

        handles = [parameter.register_post_accumulate_grad_hook(apply) for parameter in model.parameters()]  # type: ignore[no-untyped-call]
        _eight(model, optimizer, scaler)
        for handle in handles:
            handle.remove()

    def alone(model: torch.nn.Module, optimizer: Any, scaler: Any) -> None:
        loop(model, optimizer, torch.amp.GradScaler("cpu", enabled=False))

    bare = _train(tmp_path, alone, watched=False, scaler=lambda: None)
    watched = _train(tmp_path, alone, scaler=lambda: None)
    assert repr(bare.weights) == repr(watched.weights)
    assert 8 == len(watched.rows())


def test_under_strict_errors_of_numpy_a_run_is_the_same(tmp_path: Path) -> None:
    def loop(model: torch.nn.Module, optimizer: Any, scaler: Any) -> None:
        with np.errstate(all="raise"):
            _eight(model, optimizer, scaler)
            assert {"raise"} == set(np.geterr().values())

    assert 8 == len(_same(tmp_path, loop))


def test_a_scale_that_fell_to_zero_is_written_without_a_warning(tmp_path: Path) -> None:
    def loop(model: torch.nn.Module, optimizer: Any, scaler: Any) -> None:
        for _ in range(3):
            _amp_step(model, optimizer, scaler, float("inf"))

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        rows = _same(tmp_path, loop, scaler=lambda: torch.amp.GradScaler("cpu", init_scale=2.0**-148))
    assert [2.0**-148, 2.0**-149, 0.0] == rows.scalar("scale").tolist()


def test_a_profiler_of_the_program_has_its_events_and_the_run_its_rows(tmp_path: Path) -> None:
    names: list[set[str]] = []

    def loop(model: torch.nn.Module, optimizer: Any, scaler: Any) -> None:
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
            _eight(model, optimizer, scaler)
        names.append({event.key for event in profile.key_averages()})

    assert 8 == len(_same(tmp_path, loop))
    assert {"Optimizer.step#SGD.step", "aten::addmm"} <= names[0] <= names[1]


def test_anomaly_detection_of_the_program_stays_as_it_is(tmp_path: Path) -> None:
    def loop(model: torch.nn.Module, optimizer: Any, scaler: Any) -> None:
        with torch.autograd.detect_anomaly(check_nan=False):
            _eight(model, optimizer, scaler)

    with pytest.warns(UserWarning, match="Anomaly Detection"):
        assert 8 == len(_same(tmp_path, loop))


def test_a_patch_that_was_there_before_is_called_and_there_afterwards(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    original, calls = torch.amp.GradScaler.step, []

    def patched(self: Any, optimizer: Any, *args: Any, **kwargs: Any) -> Any:
        calls.append(optimizer)
        return original(self, optimizer, *args, **kwargs)

    monkeypatch.setattr(torch.amp.GradScaler, "step", patched)
    rows = _same(tmp_path, _eight)
    assert 2.0 == rows.scalar("skipped").sum()
    assert 16 == len(calls)
    assert patched is vars(torch.amp.GradScaler)["step"]


def test_a_patch_that_came_later_and_went_first_leaves_no_trace(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def loop(model: torch.nn.Module, optimizer: Any, scaler: Any) -> None:
        with monkeypatch.context() as during:
            ours = torch.amp.GradScaler.step
            during.setattr(torch.amp.GradScaler, "step", lambda *args, **kwargs: ours(*args, **kwargs))
            _eight(model, optimizer, scaler)
        _amp_step(model, optimizer, scaler)

    before = vars(torch.amp.GradScaler)["step"]
    assert 9 == len(_same(tmp_path, loop))
    assert before is vars(torch.amp.GradScaler)["step"]


def test_a_patch_of_one_scaler_alone_is_heard_through(tmp_path: Path) -> None:
    def loop(model: torch.nn.Module, optimizer: Any, scaler: Any) -> None:
        inner, calls = scaler.step, list[int]()

        def step(*args: Any, **kwargs: Any) -> Any:
            calls.append(1)
            return inner(*args, **kwargs)

        scaler.step = step
        _eight(model, optimizer, scaler)
        assert 8 == len(calls)

    assert 2.0 == _same(tmp_path, loop).scalar("skipped").sum()


def test_copies_made_while_watching_are_whole_and_their_own(tmp_path: Path) -> None:
    def loop(model: torch.nn.Module, optimizer: Any, scaler: Any) -> None:
        _amp_step(model, optimizer, scaler)
        assert scaler.state_dict() == pickle.loads(pickle.dumps(scaler)).state_dict()
        twin = copy.deepcopy({"model": model, "optimizer": optimizer, "scaler": scaler})
        assert (
            optimizer.state_dict()["param_groups"] == pickle.loads(pickle.dumps(optimizer)).state_dict()["param_groups"]
        )
        before = [parameter.tolist() for parameter in model.parameters()]
        assert before == [parameter.tolist() for parameter in twin["model"].parameters()]
        for _ in range(3):
            _amp_step(twin["model"], twin["optimizer"], twin["scaler"], float("inf"))
        assert before == [parameter.tolist() for parameter in model.parameters()]
        assert (64.0, 8.0) == (scaler.get_scale(), twin["scaler"].get_scale())
        _amp_step(model, optimizer, scaler)

    rows = _same(tmp_path, loop)
    assert [64.0, 64.0] == rows.scalar("scale").tolist()
    assert [] == patch.attached()


def test_what_was_saved_while_watching_loads_where_ammeter_is_not_installed(tmp_path: Path) -> None:
    def loop(model: torch.nn.Module, optimizer: Any, scaler: Any) -> None:
        _amp_step(model, optimizer, scaler)
        whole = {"model": model, "optimizer": optimizer, "scaler": scaler, "step": torch.amp.GradScaler.step}
        buffer = io.BytesIO()
        torch.save(whole, buffer)
        (tmp_path / "checkpoint").write_bytes(buffer.getvalue())

    _train(tmp_path / "journal", loop)
    program = (
        "import sys; sys.modules['ammeter'] = None\n"
        "import torch; found = torch.load(sys.argv[1], weights_only=False)\n"
        "print(found['scaler'].get_scale(), found['step'] is torch.amp.GradScaler.step)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, tmp_path / "checkpoint"], capture_output=True, text=True, timeout=60
    )
    assert ("64.0 True\n", "") == (done.stdout, done.stderr)

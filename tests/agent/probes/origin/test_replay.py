from __future__ import annotations

import math
import random
import types
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
import torch
from torch.nn.parallel import DistributedDataParallel

from ammeter.probes.origin import culprit
from ammeter.probes.origin.replay import Refused, capture, replay
from ammeter.torch_hooks.forward_calls import innermost
from tests.agent.networks import NETWORKS, Network, normal, train
from tests.agent.probes.origin.test_probe import origins


def _once(step_of_the_fault: int) -> Callable[[int, Network], None]:
    """One element overflows in one step, in the middle of the network, and never again."""

    def before(step: int, network: Network) -> None:
        if step == 0:
            layer = network.model.get_submodule(network.layer)
            layer.register_forward_hook(lambda module, args, output: output * network.factor)  # type: ignore[attr-defined]
        network.factor = 1e30 if step == step_of_the_fault else 1.0  # type: ignore[attr-defined]

    return before


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("name", NETWORKS)
def test_what_happens_once_is_named_by_replay_and_the_run_ends_in_the_same_bits(
    name: str, dtype: torch.dtype, tmp_path: Path
) -> None:
    factor = 1e30 if dtype is torch.float16 else math.inf

    def before(step: int, network: Network) -> None:
        _once(3)(step, network)
        if step == 3:
            network.factor = factor  # type: ignore[attr-defined]

    bare = train(NETWORKS[name], None, before=before, dtype=dtype)
    watched = train(NETWORKS[name], tmp_path, before=before, dtype=dtype, replay=True)
    assert repr(bare.state) == repr(watched.state)
    layer = NETWORKS[name]().layer
    assert (3, "forward", layer, "replay") == origins(watched)[0]
    assert layer == watched.of("origin.found")[0]["last"][-1]["module"]


def test_without_the_wish_nothing_is_kept_or_run_again(tmp_path: Path) -> None:
    recorded = train(normal, tmp_path, before=_once(3))
    assert [] == origins(recorded)


def test_inputs_are_let_go_when_the_optimizer_has_stepped(tmp_path: Path) -> None:
    alive: list[bool] = []
    refs: list[weakref.ref[torch.Tensor]] = []

    def before(step: int, network: Network) -> None:
        network.args = (torch.randn(8, 12),)
        alive.extend(ref() is not None for ref in refs)
        refs[:] = [weakref.ref(network.args[0])]

    train(normal, tmp_path, before=before, replay=True)
    assert [False] * 7 == alive


class Dicey(torch.nn.Module):
    """Draws from every generator, counts its passes, keeps running statistics."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(4, 4)
        self.norm = torch.nn.BatchNorm1d(4)
        self.drop = torch.nn.Dropout(0.5)
        self.passes = 0
        self.seen: torch.Tensor | None = None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.passes += 1
        x = self.drop(self.norm(self.layer(x))) * random.random() * float(np.random.random())
        self.seen = x.detach()
        return x


def _guard(call: Any) -> Any:
    return call


def _replayed(module: torch.nn.Module, *args: Any) -> Any:
    kept = capture(module, args, {})
    module(*args)
    return replay([kept], lambda model: "", _guard)


def test_a_replay_sees_the_same_numbers_and_leaves_nothing_behind() -> None:
    torch.manual_seed(0)
    model = Dicey()
    x = torch.randn(6, 4)
    kept = capture(model, (x,), {})
    model(x)
    state = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    versions = [tensor._version for tensor in (*model.parameters(), *model.buffers())]
    random_now = torch.get_rng_state(), random.getstate(), np.random.get_state()[1].tolist()  # type: ignore[index]
    visits = replay([kept], lambda model: "prefix.", _guard)
    assert torch.equal(random_now[0], torch.get_rng_state())
    assert random_now[1] == random.getstate()
    assert random_now[2] == np.random.get_state()[1].tolist()  # type: ignore[index]
    assert all(torch.equal(tensor, model.state_dict()[name]) for name, tensor in state.items())
    assert versions == [tensor._version for tensor in (*model.parameters(), *model.buffers())]
    assert 1 == model.passes
    assert ["prefix.", "prefix.layer", "prefix.norm", "prefix.drop"] == [visit.module for visit in visits.visits]
    assert 0 == sum(len(module._forward_hooks) + len(module._forward_hooks_with_kwargs) for module in model.modules())
    read = visits.readings.all()
    dropped = next(visit for visit in visits.visits if visit.module == "prefix.drop")
    numbers = read[dropped.outputs[0]]
    assert numbers is not None
    torch.manual_seed(0)
    Dicey()
    torch.randn(6, 4)
    again = torch.nn.functional.dropout(torch.nn.functional.batch_norm(model.layer(x), None, None, training=True), 0.5)
    assert float(again.detach().abs().max()) == pytest.approx(numbers.absmax, rel=1e-5)


@pytest.mark.parametrize("inside", [True, False])
def test_autocast_is_as_it_was_and_its_cache_is_not_filled(inside: bool) -> None:
    model = torch.nn.Linear(4, 4)
    x = torch.randn(2, 4)
    with torch.autocast("cpu", torch.float16):
        kept = capture(model, (x,), {})
        visits = replay([kept], lambda model: "", _guard) if inside else None
        output = model(x)
    visits = visits or replay([kept], lambda model: "", _guard)
    assert not torch.is_autocast_enabled("cpu")
    assert torch.is_autocast_cache_enabled()
    assert ["float16"] == visits.visits[0].dtypes
    output.float().sum().backward()
    assert model.weight.grad is not None


def test_modules_that_are_used_twice_or_share_a_weight_stay_one() -> None:
    shared = torch.nn.BatchNorm1d(4)
    model = torch.nn.Sequential(shared, torch.nn.Linear(4, 4), shared)
    visits = _replayed(model, torch.randn(3, 4))
    assert ["", "0", "1", "0"] == [visit.module for visit in visits.visits]
    assert 2 == int(shared.num_batches_tracked or 0)


@pytest.mark.filterwarnings("ignore::FutureWarning")
def test_hooks_that_belong_to_the_model_run_in_the_replay_too() -> None:
    model = torch.nn.utils.weight_norm(torch.nn.Linear(4, 4))
    before = vars(model)["weight"]
    visits = _replayed(model, torch.ones(2, 4))
    assert 1 == len(visits.visits)
    assert torch.equal(before, vars(model)["weight"])


def test_an_accelerated_forward_of_the_instance_is_rebound() -> None:
    model = Dicey()
    model.forward = types.MethodType(lambda self, x: Dicey.forward(self, x * 2), model)  # type: ignore[method-assign]
    visits = _replayed(model, torch.ones(2, 4))
    assert 1 == model.passes
    assert 4 == len(visits.visits)


def test_a_model_in_a_wrapper_of_torch_is_replayed_without_it(tmp_path: Path) -> None:
    store = torch.distributed.FileStore(str(tmp_path / "store"), 1)  # type: ignore[attr-defined]
    torch.distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
    try:
        model = DistributedDataParallel(Dicey())
        visits = _replayed(model, torch.ones(2, 4))
        assert ["", "layer", "norm", "drop"] == [visit.module for visit in visits.visits]
        assert 1 == cast(Dicey, innermost(model)).passes
        del model
    finally:
        torch.distributed.destroy_process_group()


@pytest.mark.filterwarnings("ignore")
def test_a_compiled_model_is_replayed_as_it_was_written() -> None:
    torch._dynamo.reset()
    model = Dicey()
    calls: list[int] = []

    def backend(graph: Any, inputs: Any) -> Any:
        calls.append(0)
        return graph.forward

    compiled = torch.nn.Sequential(
        torch.nn.Linear(4, 4), cast(torch.nn.Module, torch.compile(model.layer, backend=backend))
    )
    compiled(torch.ones(2, 4))
    compiled_graphs = len(calls)
    visits = _replayed(compiled, torch.ones(2, 4))
    torch._dynamo.reset()
    assert ["", "0", "1"] == [visit.module for visit in visits.visits]
    assert compiled_graphs == len(calls)


def _changed(x: torch.Tensor) -> torch.nn.Module:
    model = torch.nn.Linear(4, 4)

    def change(module: torch.nn.Module, args: tuple[torch.Tensor], output: torch.Tensor) -> None:
        args[0].add_(1)

    model.register_forward_hook(change)
    return model


class Sharded(torch.nn.Linear):
    """Named after what it stands for."""


Sharded.__name__ = "FullyShardedDataParallel"


def _patched(x: torch.Tensor) -> torch.nn.Module:
    model = torch.nn.Linear(4, 4)
    original = model.forward
    model.forward = lambda x: original(x)  # type: ignore[method-assign, assignment]
    return model


def _scripted(x: torch.Tensor) -> torch.nn.Module:
    return torch.nn.Sequential(cast(torch.nn.Module, torch.jit.script(torch.nn.Linear(4, 4))))


class Moody(torch.nn.Module):
    calls = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        Moody.calls += 1
        if Moody.calls > 1:
            raise FloatingPointError("no")
        return x


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (_changed, "changed"),
        (lambda x: Sharded(4, 4), "sharded"),
        (_patched, "patched"),
        (_scripted, "scripted"),
        (lambda x: Moody(), "raised"),
    ],
)
def test_what_could_change_or_stop_the_program_is_refused_with_a_word(make: Any, reason: str) -> None:
    x = torch.ones(2, 4)
    model = make(x)
    state = torch.get_rng_state()
    with pytest.raises(Refused, match=reason):
        _replayed(model, x)
    assert torch.equal(state, torch.get_rng_state())


def test_in_a_job_of_several_only_what_reduces_gradients_alone_is_replayed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.distributed, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.distributed, "get_world_size", lambda: 2)
    with pytest.raises(Refused, match="distributed"):
        _replayed(torch.nn.Linear(4, 4), torch.ones(2, 4))


def test_a_refusal_is_told_once(tmp_path: Path) -> None:
    def before(step: int, network: Network) -> None:
        if step == 0:
            original = network.model.forward
            network.model.forward = lambda *args: original(*args)

    recorded = train(
        normal, tmp_path, before=before, spoil=lambda step, loss: loss * math.nan if step > 2 else loss, replay=True
    )
    assert ["replay: patched"] == [data["reason"] for data in recorded.of("origin.unknown")]


def test_what_went_in_is_to_blame_before_any_module() -> None:
    visits = _replayed(torch.nn.Linear(4, 4), torch.full((2, 4), math.nan))
    found = culprit.find_origin(visits, "replay", loss_is_finite=False)
    assert found is not None
    assert ("input", 8) == (found["kind"], found["nans"])

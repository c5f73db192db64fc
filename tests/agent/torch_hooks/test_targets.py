from __future__ import annotations

import gc
import weakref

import pytest
import torch

from ammeter.torch_hooks.gradients import gradient
from ammeter.torch_hooks.targets import Watched, optimizer_in, plain_name


def _sgd(*parameters: torch.Tensor) -> torch.optim.SGD:
    return torch.optim.SGD(list(parameters), lr=0.1)


def _names(watched: Watched) -> list[str]:
    return [tensor.name for tensor in watched.tensors]


def test_tensors_have_the_models_names_without_the_parts_that_wrappers_put_in() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.Linear(3, 1))
    wrapped = torch.compile(torch.nn.Sequential(model), backend="eager")
    assert ["0.0.weight", "0.0.bias", "0.1.weight", "0.1.bias"] == _names(Watched([wrapped], [], []))  # type: ignore[list-item]
    assert "0.weight" == _names(Watched([model], [_sgd(*model.parameters())], []))[0]


def test_two_models_are_told_apart_and_a_parameter_without_a_model_is_named_by_its_place() -> None:
    one, two = torch.nn.Linear(2, 1), torch.nn.Linear(2, 1, bias=False)
    alone = torch.nn.Parameter(torch.ones(3))
    watched = Watched([one, two], [_sgd(*one.parameters(), *two.parameters(), alone)], [])
    assert ["model0.weight", "model0.bias", "model1.weight", "group0.3"] == _names(watched)


def test_shapes_and_dtypes_are_told() -> None:
    watched = Watched([], [_sgd(torch.nn.Parameter(torch.ones(2, 3, dtype=torch.bfloat16)))], [])
    assert [((2, 3), "bfloat16")] == [(tensor.shape, tensor.dtype) for tensor in watched.tensors]


def test_an_exchanged_parameter_gets_an_index_of_its_own() -> None:
    first, second = torch.nn.Parameter(torch.ones(1)), torch.nn.Parameter(torch.ones(1))
    optimizer = _sgd(first, second)
    watched = Watched([], [optimizer], [])
    assert [0, 1] == watched.parameters(optimizer)[1]
    other = optimizer.param_groups[0]["params"][1] = torch.nn.Parameter(torch.ones(5))
    found, indices = watched.parameters(optimizer)
    assert [0, 2] == indices
    assert found[1] is other
    assert ["group0.0", "group0.1", "group0.1"] == _names(watched)


def test_a_removed_parameter_is_no_longer_read() -> None:
    first, second = torch.nn.Parameter(torch.ones(1)), torch.nn.Parameter(torch.ones(1))
    optimizer = _sgd(first, second)
    watched = Watched([], [optimizer], [])
    del optimizer.param_groups[0]["params"][0]
    assert ([second], [1]) == watched.parameters(optimizer)


def test_a_parameter_that_got_the_id_of_a_dead_one_is_not_taken_for_it() -> None:
    optimizer = _sgd(torch.nn.Parameter(torch.ones(1)))
    watched = Watched([], [optimizer], [])
    for count in range(1, 50):
        optimizer.param_groups[0]["params"].clear()
        assert [] == watched.optimizers_of([torch.nn.Parameter(torch.ones(1))])
        optimizer.param_groups[0]["params"].append(torch.nn.Parameter(torch.ones(1)))
        assert [count] == watched.parameters(optimizer)[1]


def test_optimizers_are_found_by_their_parameters() -> None:
    one, two = torch.nn.Linear(2, 1), torch.nn.Linear(2, 1)
    first, second = _sgd(*one.parameters()), _sgd(*two.parameters())
    watched = Watched([one, two], [first, second], [])
    assert [first] == watched.optimizers_of([one.bias])
    assert {first, second} == set(watched.optimizers_of([one.bias, two.weight]))
    assert [] == watched.optimizers_of([torch.nn.Parameter(torch.ones(1))])
    assert [] == watched.optimizers_of([])


def test_nothing_is_kept_alive() -> None:
    model, scaler = torch.nn.Linear(2, 1), torch.amp.GradScaler("cpu")
    optimizer = _sgd(*model.parameters())
    watched = Watched([model], [optimizer], [scaler])
    watched.parameters(optimizer)
    watched.use(scaler, optimizer)
    alive = [weakref.ref(target) for target in (model, model.weight, optimizer, scaler)]
    del model, optimizer, scaler
    gc.collect()
    assert [None] * 4 == [ref() for ref in alive]
    assert ([], []) == (list(watched.optimizers), list(watched.scalers))


def test_the_scaler_of_an_optimizer_is_the_one_that_steps_it() -> None:
    parameters = [torch.nn.Parameter(torch.ones(1)) for _ in range(2)]
    first, second = _sgd(parameters[0]), _sgd(parameters[1])
    scalers = [torch.amp.GradScaler("cpu", init_scale=2.0), torch.amp.GradScaler("cpu", init_scale=4.0)]
    watched = Watched([], [first, second], scalers)
    for scaler, optimizer, parameter in zip(scalers, (first, second), parameters, strict=True):
        scaler.scale(parameter.sum()).backward()  # type: ignore[no-untyped-call]
        watched.use(scaler, optimizer)
    assert scalers == [watched.scaling(first), watched.scaling(second)]
    scalers[0].unscale_(first)
    assert [None, scalers[1]] == [watched.scaling(first), watched.scaling(second)]


def test_a_disabled_scaler_and_one_that_was_never_used_scale_nothing() -> None:
    optimizer = _sgd(torch.nn.Parameter(torch.ones(1)))
    for scaler in (torch.amp.GradScaler("cpu", enabled=False), torch.amp.GradScaler("cpu")):
        watched = Watched([], [optimizer], [scaler])
        watched.use(scaler, optimizer)
        assert watched.scaling(optimizer) is None
        assert not watched.overflowed(optimizer)


@pytest.mark.parametrize("value", [1.0, float("inf"), float("nan")])
def test_an_overflow_is_known_as_soon_as_the_scaler_knows_it(value: float) -> None:
    parameter = torch.nn.Parameter(torch.ones(1))
    optimizer, scaler = _sgd(parameter), torch.amp.GradScaler("cpu", init_scale=2.0)
    watched = Watched([], [optimizer], [scaler])
    scaler.scale(parameter.sum() * value).backward()  # type: ignore[no-untyped-call]
    watched.use(scaler, optimizer)
    assert not watched.overflowed(optimizer)
    scaler.unscale_(optimizer)
    assert (value != 1.0) == watched.overflowed(optimizer)


def test_without_a_scaler_of_its_own_a_run_owns_the_first_one_it_meets() -> None:
    optimizer, scaler = _sgd(torch.nn.Parameter(torch.ones(1))), torch.amp.GradScaler("cpu")
    watched = Watched([], [optimizer], [])
    assert watched.owns(scaler)
    watched.use(scaler, optimizer)
    assert watched.owns(scaler)
    assert not watched.owns(torch.amp.GradScaler("cpu"))


def test_the_optimizer_of_a_call_is_found_however_it_was_passed() -> None:
    assert "here" == optimizer_in((0, "here"), {})
    assert "here" == optimizer_in((0,), {"optimizer": "here"})
    assert optimizer_in((0,), {"other": "there"}) is None


def test_a_gradient_is_one_dense_real_tensor_or_none() -> None:
    parameter = torch.nn.Parameter(torch.ones(2, 2))
    assert gradient(parameter) is None
    parameter.grad = torch.ones(2, 2)
    found = gradient(parameter)
    assert found is not None
    assert found.data_ptr() == parameter.grad.data_ptr()
    parameter.grad = torch.sparse_coo_tensor(
        torch.tensor([[0, 0], [1, 1]]), torch.tensor([1.0, 2.0]), (2, 2), check_invariants=True
    )
    assert [3.0] == gradient(parameter).tolist()  # type: ignore[union-attr]
    wave = torch.nn.Parameter(torch.ones(1, dtype=torch.complex64))
    wave.grad = torch.tensor([3 + 4j])
    assert [[3.0, 4.0]] == gradient(wave).tolist()  # type: ignore[union-attr]
    away = torch.nn.Parameter(torch.ones(1, device="meta"))
    away.grad = torch.ones(1, device="meta")
    assert gradient(away) is None


def test_a_gradient_without_memory_of_its_own_is_not_read() -> None:
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode():
        parameter = torch.nn.Parameter(torch.ones(2))
        parameter.grad = torch.ones(2)
        assert gradient(parameter) is None


def test_a_copy_is_named_and_knows_the_weights_it_is_a_copy_of() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(2, 3))
    watched = Watched([model], [], [])
    average = torch.optim.swa_utils.AveragedModel(model)
    watched.follow("ema", average)
    watched.follow("ema", average)
    assert ["0.weight", "0.bias", "ema.0.weight", "ema.0.bias"] == _names(watched)
    assert [(2, "0.weight"), (3, "0.bias")] == [
        (index, next(name for name, parameter in model.named_parameters() if weight and parameter is weight()))
        for index, _, weight in watched.copies
    ]
    watched.follow("head", torch.nn.Sequential(torch.nn.Linear(5, 5), model[0]))
    assert ["head.0.weight", "head.0.bias"] == _names(watched)[4:]
    assert [None, None] == [weight for _, _, weight in watched.copies[2:]]


def test_frozen_parameters_are_among_those_alive_and_dead_ones_are_not() -> None:
    model = torch.nn.Linear(2, 1)
    model.weight.requires_grad_(False)
    watched = Watched([model], [], [])
    assert [0, 1] == [index for index, _ in watched.alive()]
    assert watched.knows(model.weight)
    assert not watched.knows(torch.nn.Parameter(torch.ones(1)))
    del model
    gc.collect()
    assert [] == watched.alive()


@pytest.mark.parametrize(
    "name",
    ["0.weight", "module.0.weight", "_orig_mod.0.weight", "_forward_module.0.weight", "module._orig_mod.0.weight"],
)
def test_names_omit_the_parts_of_wrappers(name: str) -> None:
    assert plain_name(name) == "0.weight"

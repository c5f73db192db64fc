"""The operator that made a loss non-finite is found in the graph of the loss, at the first such step."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

import ammeter
from ammeter.probes.origin.graph import culprit as graph_culprit
from tests.agent.networks import Network, train
from tests.agent.training import stream

Change = Callable[[torch.Tensor], torch.Tensor]

ONSET_STEP = 3


class Gate(torch.nn.Module):
    """Two layers, and code between them."""

    def __init__(self, change: Change) -> None:
        super().__init__()
        self.enter, self.leave = torch.nn.Linear(12, 20), torch.nn.Linear(20, 12)
        self.change, self.step = change, -1

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.step += 1
        x = torch.tanh(self.enter(x))
        output: torch.Tensor = self.leave(self.change(x) if self.step == ONSET_STEP else x)
        return output


class Listed(torch.nn.Module):
    """Layers in a list, which has no forward() of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.layers, self.step = torch.nn.ModuleList([torch.nn.Linear(12, 12), torch.nn.Linear(12, 3)]), -1

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.step += 1
        x = self.layers[0](x)
        output: torch.Tensor = self.layers[1](torch.log(x - x) if self.step == ONSET_STEP else x)
        return output


def _network(change: Change) -> Network:
    model = torch.nn.Sequential(torch.nn.Linear(12, 12), Gate(change), torch.nn.Linear(12, 3))
    return Network(model, (torch.randn(8, 12),), {}, "0")


def _first(recorded: Any) -> tuple[int, dict[str, Any]]:
    return next((step, data) for step, name, data in recorded.events if name == "origin.found")


def _without_first_row(x: torch.Tensor) -> torch.Tensor:
    keep = torch.ones_like(x)
    keep[0] = 0
    return keep


def _shares(x: torch.Tensor) -> torch.Tensor:
    kept = x.abs() * _without_first_row(x)
    return kept / kept.sum(-1, keepdim=True)


@pytest.mark.parametrize(
    ("change", "op", "reason"),
    [
        (lambda x: x.masked_fill(_without_first_row(x) == 0, -torch.inf).softmax(-1), "SoftmaxBackward0", ""),
        (lambda x: x.masked_fill(_without_first_row(x) == 0, -torch.inf) * x.relu(), "MulBackward0", ""),
        (_shares, "DivBackward0", "row"),
        (lambda x: torch.log(x - x), "LogBackward0", ""),
        (lambda x: x.sub(x.mean(-1, keepdim=True)).square().sub(9).sqrt(), "SqrtBackward0", ""),
    ],
)
def test_the_operator_of_a_single_step_and_its_module_are_named(
    change: Change, op: str, reason: str, tmp_path: Path
) -> None:
    step, found = _first(train(lambda: _network(change), tmp_path, dtype=None))
    assert (ONSET_STEP, "forward", "1", op, reason) == (
        step,
        *(found[name] for name in ("kind", "module", "op", "reason")),
    )
    assert found["caller"].endswith(".py:" + found["caller"].rpartition(":")[2])
    assert found["nans"] + found["infs"] > 0


def test_an_overflow_names_the_factor_and_not_the_layer_behind_it(tmp_path: Path) -> None:
    step, found = _first(train(lambda: _network(lambda x: x.add(0).mul_(9e6)), tmp_path, dtype=torch.float16))
    assert (ONSET_STEP, "1", "MulBackward0", "float16") == (step, found["module"], found["op"], found["dtype"])
    assert found["infs"] > 0


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda x: (300 * x.half() + 300) ** 4, "range"),
        (lambda x: x.half() / torch.full_like(x, 1e-7, dtype=torch.float16), "range"),
        (lambda x: (x - x).half() ** -2, ""),
        (lambda x: x.half() / (x - x).half(), ""),
    ],
)
def test_a_number_beyond_the_range_of_the_dtype_is_no_division_by_zero(
    change: Change, reason: str, tmp_path: Path
) -> None:
    def as_float(x: torch.Tensor) -> torch.Tensor:
        return change(x).float()

    step, found = _first(train(lambda: _network(as_float), tmp_path, dtype=None))
    assert (ONSET_STEP, "1", reason) == (step, found["module"], found["reason"])


def test_a_list_of_layers_is_no_module_with_an_operator(tmp_path: Path) -> None:
    network = Network(Listed(), (torch.randn(8, 12),), {}, "0")
    step, found = _first(train(lambda: network, tmp_path, dtype=None))
    assert (ONSET_STEP, "", "LogBackward0") == (step, found["module"], found["op"])


def test_operators_that_pass_an_overflow_on_are_not_its_origin(tmp_path: Path) -> None:
    passed = train(lambda: _network(lambda x: (x * 9e6).add(1.0).relu()), tmp_path, dtype=torch.float16)
    step, found = _first(passed)
    assert (ONSET_STEP, "1", "MulBackward0") == (step, found["module"], found["op"])


def test_a_loss_divided_by_the_number_of_micro_batches_does_not_hide_the_overflow_before_it() -> None:
    torch.manual_seed(0)
    enter, leave = torch.nn.Linear(6, 8), torch.nn.Linear(8, 3)
    hidden = functional.gelu(enter(torch.randn(4, 6)).half()) * 3e6
    loss = functional.cross_entropy(leave(hidden.float()), torch.zeros(4, dtype=torch.long)) / 4
    origin = graph_culprit.find_origin(1024.0 * loss, lambda _: "", lambda _: False)
    assert origin is not None
    assert ("MulBackward0", "float16") == (origin["op"], origin["dtype"])


def test_an_operator_after_the_criterion_is_behind_the_last_layer(tmp_path: Path) -> None:
    def spoil(step: int, loss: torch.Tensor) -> torch.Tensor:
        return loss + loss.new_zeros(()).add(loss.detach() - loss).log() if step == ONSET_STEP else loss

    step, found = _first(train(lambda: _network(lambda x: x), tmp_path, spoil=spoil, dtype=None))
    assert (ONSET_STEP, "", "2", "LogBackward0") == (step, found["module"], found["behind"], found["op"])


def _origin_of(loss: torch.Tensor, model: torch.nn.Module) -> dict[str, Any]:
    names = {id(weight): name for name, weight in model.named_parameters()}
    found = graph_culprit.find_origin(loss, lambda tensor: names.get(id(tensor), ""), lambda path: True)
    assert found is not None
    return found


@pytest.mark.parametrize("reduction", ["mean", "sum"])
def test_a_summand_outside_of_the_graph_is_named_and_not_the_criterion(reduction: str) -> None:
    model = torch.nn.Linear(4, 3)
    loss = functional.cross_entropy(model(torch.randn(5, 4)), torch.tensor([0, 1, 2, 0, -100]), reduction=reduction)
    found = _origin_of(loss + torch.zeros(()).log(), model)
    assert ("AddBackward0", "constant", "bias") == (found["op"], found["reason"], found["behind"])
    found = _origin_of(loss - torch.log(functional.relu(loss.detach() - loss)), model)
    assert ("LogBackward0", "") == (found["op"], found["reason"])


def test_a_mean_over_no_target_is_named(tmp_path: Path) -> None:
    def spoil(step: int, loss: torch.Tensor) -> torch.Tensor:
        logits = (loss * torch.ones(4, 3)).view(4, 3)
        ignored = torch.full((4,), -100)
        return functional.cross_entropy(logits, ignored) if step == ONSET_STEP else loss

    _, found = _first(train(lambda: _network(lambda x: x), tmp_path, spoil=spoil, dtype=None))
    assert ("NllLossBackward0", "targets") == (found["op"], found["reason"])


def test_a_checkpointed_block_is_not_run_again_and_nothing_behind_it_is_blamed(tmp_path: Path) -> None:
    calls: list[int] = []

    def block(x: torch.Tensor) -> torch.Tensor:
        calls.append(1)
        return (x - 2).log() * 3

    def change(x: torch.Tensor) -> torch.Tensor:
        output: torch.Tensor = checkpoint(block, x, use_reentrant=False)
        return output

    recorded = train(lambda: _network(change), tmp_path, dtype=None)
    found = [data for _, name, data in recorded.events if name == "origin.found"]
    assert 2 == len(calls)  # forward, and the program's own backward
    assert not [data for data in found if data["confidence"] == "graph" and data["kind"] == "forward"]


def test_a_weight_that_is_not_finite_is_the_origin(tmp_path: Path) -> None:
    def before(step: int, network: Network) -> None:
        if step == ONSET_STEP:
            with torch.no_grad():
                network.model.get_parameter("1.leave.weight")[2, 3] = torch.nan

    step, found = _first(train(lambda: _network(lambda x: x), tmp_path, before=before, dtype=None))
    assert (ONSET_STEP, "weights", "1.leave.weight") == (step, found["kind"], found["tensor"])


class Recomputed(torch.nn.Module):
    """A layer whose weights are not in the graph of the loss."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(12, 12)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        output: torch.Tensor = checkpoint(self.layer, x, use_reentrant=True)
        return output


@pytest.mark.parametrize("bad", [True, False])
def test_a_weight_is_read_where_a_function_hides_it(bad: bool, tmp_path: Path) -> None:
    """The look-alike has finite weights and an input that overflows in the same function."""

    def build() -> Network:
        model = torch.nn.Sequential(torch.nn.Linear(12, 12), Recomputed(), torch.nn.Linear(12, 3))
        return Network(model, (torch.randn(8, 12),), {}, "1.layer")

    def before(step: int, network: Network) -> None:
        if step == ONSET_STEP:
            with torch.no_grad():
                network.model.get_parameter("1.layer.weight").fill_(1.0)[2, 3] = torch.nan if bad else 1.0
                network.model.get_parameter("0.bias").fill_(0.0 if bad else 3e38)

    _, found = _first(train(build, tmp_path, before=before, dtype=None))
    assert ("weights" if bad else "forward") == found["kind"]
    assert found.get("tensor") == ("1.layer.weight" if bad else None)


class Shifted(torch.nn.Module):
    """A buffer takes part in the forward pass."""

    shift: torch.Tensor

    def __init__(self, after: Change) -> None:
        super().__init__()
        self.enter, self.leave = torch.nn.Linear(12, 20), torch.nn.Linear(20, 3)
        self.register_buffer("shift", torch.ones(20))
        self.after, self.step = after, -1

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.step += 1
        if self.step == ONSET_STEP:
            self.shift[4] = torch.nan
        output: torch.Tensor = self.leave(self.after(self.enter(x) * self.shift))
        return output


@pytest.mark.parametrize("after", [torch.tanh, lambda x: x.add(1.0).sub(x.detach().mean())])
def test_a_buffer_that_is_not_finite_is_the_origin(after: Change, tmp_path: Path) -> None:
    network = Network(Shifted(after), (torch.randn(8, 12),), {}, "0")
    step, found = _first(train(lambda: network, tmp_path, dtype=None))
    assert (ONSET_STEP, "weights", "shift", True) == (step, found["kind"], found["tensor"], found.get("buffer"))


def test_the_search_changes_no_bit_of_the_weights(tmp_path: Path) -> None:
    def trained(folder: Path | None) -> list[torch.Tensor]:
        torch.manual_seed(5)
        network = _network(lambda x: torch.dropout(x, 0.5, True) / (x - x))
        optimizer, scaler = torch.optim.SGD(network.model.parameters(), lr=0.1), torch.amp.GradScaler("cpu")
        run = ammeter.watch(network.model, optimizer, scaler, dir=folder) if folder else None
        for _ in range(8):
            with torch.autocast("cpu", torch.float16):
                loss = network.loss() + torch.rand(()) * 0
            scaler.scale(loss).backward()  # type: ignore[no-untyped-call]
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
        if run:
            run.close()
            _, frames = stream(run.id, tmp_path)
            assert "graph" in [frame.data.get("confidence") for frame in frames if hasattr(frame, "data")]
        return [*network.model.state_dict().values(), torch.rand(3)]

    assert all(map(torch.equal, trained(tmp_path), trained(None)))


@pytest.mark.parametrize(
    "activation", [torch.nn.LeakyReLU(), torch.nn.Tanh(), torch.nn.GELU(), torch.nn.SiLU(), torch.nn.Softmax(-1)]
)
def test_a_gradient_inside_the_loss_is_no_operator_of_the_forward_pass(activation: torch.nn.Module) -> None:
    critic = torch.nn.Sequential(torch.nn.Linear(4, 8), activation, torch.nn.Linear(8, 1))

    def penalty(scale: float, offset: float) -> dict[str, Any] | None:
        x = torch.randn(16, 4, requires_grad=True)
        with torch.autocast("cpu", torch.float16):
            score = critic(x).float().sum()
        (slope,) = torch.autograd.grad(scale * score, x, create_graph=True)
        loss = (slope / scale).norm() + torch.log(critic(x).square() + offset).mean()
        return graph_culprit.find_origin(loss, lambda _: "", lambda _: False)

    of_gradient, of_forward = penalty(2.0**17, 1.0), penalty(16.0, -1e6)
    assert of_gradient is not None
    assert of_forward is not None
    assert ("gradient", "forward") == (of_gradient["kind"], of_forward["kind"])

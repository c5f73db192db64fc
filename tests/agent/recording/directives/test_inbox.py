"""A live run carries out what a person asks of it, answers always, and trains as if nobody had asked."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import ammeter
from ammeter import journal
from ammeter.journal import directives
from ammeter.probes.gradients.asked import AllTensors
from ammeter.probes.origin import loss_origin
from ammeter.recording.directives import inbox
from ammeter.wire.columns import measured
from tests.agent.networks import Network, normal
from tests.agent.training import events, stream

ARMS = ("origin", "census", "trial", "tensors")

Step = Callable[[int, torch.Tensor], torch.Tensor]


@pytest.fixture(autouse=True)
def checked_in_each_step(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(directives, "CHECK_SECONDS", 0.0)


class Asked:
    """A training loop that is asked at some steps, and its journal."""

    def __init__(self, folder: Path, network: Network | None = None, **options: Any) -> None:
        torch.manual_seed(0)
        self.network = network or normal()
        self.network.model.train()
        self.optimizer = torch.optim.SGD(self.network.model.parameters(), lr=1e-3)
        self.folder = folder
        self.run = ammeter.watch(self.network.model, self.optimizer, dir=folder, **options)
        self._asked: list[dict[str, Any]] = []

    def ask(self, *asked: Any) -> None:
        self._asked += [{"id": str(len(self._asked) + at), **one} for at, one in enumerate(asked)]
        assert self.run._session is not None
        journal.replace(self.run._session.journal.folder / "directives", json.dumps(self._asked).encode())

    def train(self, steps: int, spoil: Step = lambda step, loss: loss) -> None:
        for step in range(steps):
            self.optimizer.zero_grad()
            with torch.autocast("cpu", torch.bfloat16):
                loss = self.network.loss().float()
            spoil(step, loss).backward()  # type: ignore[no-untyped-call]
            self.optimizer.step()

    def answers(self, name: str = "directive.done") -> list[dict[str, Any]]:
        self.run.close()
        _, frames = stream(self.run.id, self.folder)
        assert [] == events(frames, "probe.failed")
        return [{**event.data, "at": event.step} for event in events(frames, name)]


@pytest.mark.parametrize("preset", ["light", "default", "full"])
@pytest.mark.parametrize("arm", ARMS)
def test_each_directive_is_answered_with_the_last_of_its_steps(arm: str, preset: str, tmp_path: Path) -> None:
    asked = Asked(tmp_path, preset=preset)
    asked.train(3)
    asked.ask({"arm": arm, "steps": 4})
    asked.train(8)
    (answer,) = asked.answers()
    assert ("0", arm, 3, 4, 4) == tuple(answer[name] for name in ("id", "arm", "first_step", "steps", "read_steps"))
    assert 6 == answer["at"]
    assert 0 < answer["seconds"] < answer["step_seconds"]
    assert "reason" not in answer


@pytest.mark.parametrize("arm", ARMS)
def test_a_run_that_is_asked_ends_in_the_same_bits(arm: str, tmp_path: Path) -> None:
    def trained(ask: bool) -> str:
        asked = Asked(tmp_path)
        for _ in range(3):
            asked.train(4)
            if ask:
                asked.ask({"arm": arm, "steps": 5})
        asked.train(6)
        asked.run.close()
        return repr([tensor.tolist() for tensor in asked.network.model.state_dict().values()])

    assert trained(ask=False) == trained(ask=True)


def test_a_census_names_operators_dtypes_and_fallbacks_although_the_budget_does_not_allow_one(tmp_path: Path) -> None:
    class Wide(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = torch.nn.Linear(8, 16), torch.nn.Linear(16, 8)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            x = self.first(x)
            with torch.autocast("cpu", enabled=False):
                output: torch.Tensor = self.second(x.float())
            return output

    asked = Asked(tmp_path, Network(Wide(), (torch.randn(8, 8),), {}, "first"), preset="light")
    asked.train(5)
    asked.ask({"arm": "census", "steps": 1})
    asked.train(3)
    (answer,) = asked.answers()
    assert 0.5 == pytest.approx(answer["share"])
    assert {("addmm", "bfloat16", 1), ("addmm", "float32", 1)} == {
        (operator["op"], operator["dtype"], operator["modules"]) for operator in answer["operators"]
    }
    (fallback,) = answer["fallbacks"]
    assert ("second", "autocast-disabled", "float32") == tuple(fallback[key] for key in ("module", "reason", "dtype"))
    assert answer["casts"] > 0
    assert answer["whole"]


def test_all_tensors_are_read_although_the_budget_does_not_allow_it(tmp_path: Path) -> None:
    asked = Asked(tmp_path)
    asked.train(2)
    asked.ask({"arm": "tensors", "steps": 3})
    asked.train(10)
    count = len(list(asked.network.model.parameters()))
    (answer,) = asked.answers()
    assert (count, count, count) == tuple(answer[name] for name in ("gradients", "full_gradients", "weights"))
    assert (0, 0) == (answer["nonfinite_gradients"], answer["nonfinite_weights"])
    assert answer["largest"]["tensor"] in dict(asked.network.model.named_parameters())


def test_the_statistics_of_gradients_are_read_in_these_steps_only_where_the_preset_has_none(tmp_path: Path) -> None:
    asked = Asked(tmp_path, preset="light")
    asked.train(10)
    asked.ask({"arm": "tensors", "steps": 3})
    asked.train(10)
    (answer,) = asked.answers()
    assert (3, 0) == (answer["read_steps"], answer["weights"])
    rows, _ = stream(asked.run.id, tmp_path)
    assert [10, 11, 12] == rows.steps[measured(rows.scalar("grad_absmax"))].tolist()


@pytest.mark.parametrize("steps", [1, 5])
def test_of_healthy_steps_it_is_answered_that_nothing_was_found(steps: int, tmp_path: Path) -> None:
    asked = Asked(tmp_path)
    asked.train(2)
    asked.ask({"arm": "origin", "steps": steps}, {"arm": "trial", "steps": steps})
    asked.train(8)
    origin, trial = asked.answers()
    assert (0, 0) == (origin["bad_steps"], trial["bad_steps"])
    assert origin["modules"] == len(list(asked.network.model.modules()))
    assert origin["largest"]["absmax"] > 0
    assert "origins" not in origin
    assert "trial" not in trial


def nan_of_loss(step: int, loss: torch.Tensor) -> torch.Tensor:
    return (loss - loss.detach()) / (loss.detach() - loss.detach())


def test_a_trial_is_made_although_all_searches_of_the_run_are_used_up(tmp_path: Path) -> None:
    def spoil(step: int, loss: torch.Tensor) -> torch.Tensor:
        return (loss * 0 - 1).log() if step != 12 else loss

    asked = Asked(tmp_path)
    asked.train(loss_origin.MAX_SEARCHES + 5, spoil)
    asked.ask({"arm": "trial", "steps": 20})
    asked.train(3, spoil)
    (answer,) = asked.answers()
    assert ("LogBackward0", "undefined", 1, 1) == tuple(answer[name] for name in ("op", "trial", "bad_steps", "steps"))


class Root(torch.nn.Module):
    """The backward pass of its square root is infinite at zero."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = torch.nn.Linear(4, 3)
        self.factors = [1.0]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.sqrt((self.fc(x) * self.factors[0]).float().square())


def test_the_gradient_of_a_single_bad_step_is_tried(tmp_path: Path) -> None:
    root = Root()
    network = Network(root, (torch.randn(3, 4),), {}, "fc")

    def spoil(step: int, loss: torch.Tensor) -> torch.Tensor:
        root.factors[0] = 0.0 if step == 1 else 1.0
        return loss

    asked = Asked(tmp_path, network)
    asked.train(4)
    asked.ask({"arm": "trial", "steps": 10})
    asked.train(6, spoil)
    (answer,) = asked.answers()
    assert (1, "SqrtBackward0", "backward") == tuple(answer[name] for name in ("bad_steps", "op", "direction"))
    assert answer["trial"] in ("undefined", "range", "rounded")
    assert 6 == answer["at"]  # the third forward pass has the factor that the second step set


def test_a_bad_step_in_a_window_is_described_although_it_was_reported_before(tmp_path: Path) -> None:
    def spoil(step: int, loss: torch.Tensor) -> torch.Tensor:
        asked.network.model.get_parameter(f"{asked.network.layer}.bias").data.fill_(math.nan)
        return loss

    asked = Asked(tmp_path)
    asked.train(20, spoil)
    asked.ask({"arm": "origin", "steps": 2})
    asked.train(4, spoil)
    (answer,) = asked.answers()
    assert 2 == answer["bad_steps"]
    assert ["weights"] == [origin["kind"] for origin in answer["origins"]]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("arm", ["origin", "census"])
def test_of_a_compiled_model_the_reason_is_answered(arm: str, tmp_path: Path) -> None:
    torch._dynamo.reset()
    network = normal()
    network.model = torch.compile(network.model, backend="eager")  # type: ignore[assignment]
    asked = Asked(tmp_path, network)
    asked.train(2)
    asked.ask({"arm": arm, "steps": 2})
    asked.train(5)
    (answer,) = asked.answers()
    assert ("compiled", 2, 0) == tuple(answer[name] for name in ("reason", "steps", "read_steps"))


def test_a_model_whose_forward_pass_is_not_observed_is_answered(tmp_path: Path) -> None:
    asked = Asked(tmp_path)
    asked.train(2)
    asked.ask({"arm": "origin", "steps": 2}, {"arm": "census", "steps": 2})
    model, forward = asked.network.model, type(asked.network.model).forward
    for _ in range(4):
        asked.optimizer.zero_grad()
        output: Any = forward(model, *asked.network.args, **asked.network.kwargs)
        output.square().mean().backward()
        asked.optimizer.step()
    assert ["unheard", "unheard"] == [answer["reason"] for answer in asked.answers()]


def test_a_run_that_ends_answers_what_is_open(tmp_path: Path) -> None:
    asked = Asked(tmp_path)
    asked.train(3)
    asked.ask({"arm": "origin", "steps": 50})
    asked.train(4)
    (answer,) = asked.answers()
    assert ("ended", 4) == (answer["reason"], answer["read_steps"])


def test_what_cannot_be_done_is_refused_with_the_reason(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inbox, "MAX_REQUESTS", 1)
    asked = Asked(tmp_path)
    asked.train(2)
    asked.ask({"arm": "census", "steps": 3}, {"arm": "census", "steps": 1}, {"arm": "weather", "steps": 1})
    asked.train(4)
    asked.ask({"arm": "tensors", "steps": 1})
    asked.train(2)
    refused = asked.answers("directive.refused")
    assert [("1", "busy"), ("2", "unknown"), ("3", "limit")] == [(data["id"], data["reason"]) for data in refused]


def test_one_that_costs_too_much_ends_early(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inbox, "MAX_SECONDS", 1e-9)
    asked = Asked(tmp_path)
    asked.train(2)
    asked.ask({"arm": "origin", "steps": 90})
    asked.train(60)
    (answer,) = asked.answers()
    assert ("cost", True) == (answer["reason"], answer["steps"] < 40)


def test_a_run_whose_requests_have_cost_too_much_accepts_no_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(inbox, "MAX_ALL_SECONDS", 1e-9)
    asked = Asked(tmp_path)
    asked.train(2)
    asked.ask({"arm": "census", "steps": 1})
    asked.train(60)
    asked.ask({"arm": "census", "steps": 1})
    asked.train(2)
    (refused,) = asked.answers("directive.refused")
    assert ("1", "limit") == (refused["id"], refused["reason"])


@pytest.mark.parametrize(
    "wrong",
    [{}, {"arm": 5}, {"arm": "census", "steps": "x"}, {"arm": "census", "steps": True}, {"arm": "census", "id": 7}],
)
def test_what_is_no_directive_is_ignored(wrong: dict[str, Any], tmp_path: Path) -> None:
    asked = Asked(tmp_path)
    asked.train(2)
    asked.ask(wrong)
    asked.train(3)
    assert [] == asked.answers() + asked.answers("directive.refused")


def test_the_steps_of_a_request_are_limited(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inbox, "MAX_SECONDS", math.inf)  # a busy machine may need more for a hundred censuses
    asked = Asked(tmp_path)
    asked.train(2)
    asked.ask({"arm": "census", "steps": 10**9})
    asked.train(inbox.MAX_STEPS + 5)
    (answer,) = asked.answers()
    assert inbox.MAX_STEPS == answer["steps"]


def test_a_fault_in_a_request_switches_off_its_probe_and_is_answered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def wrong(*_: Any) -> None:
        raise ValueError("added wrong")

    monkeypatch.setattr(AllTensors, "_add", wrong)
    asked = Asked(tmp_path)
    asked.train(2)
    asked.ask({"arm": "tensors", "steps": 2})
    asked.train(6)
    asked.run.close()
    _, frames = stream(asked.run.id, tmp_path)
    assert ["gradients"] == [event.data["probe"] for event in events(frames, "probe.failed")]
    assert ["failed"] == [event.data["reason"] for event in events(frames, "directive.done")]


def test_a_trial_is_refused_where_no_tensor_is_on_the_host(tmp_path: Path) -> None:
    network = Network(torch.nn.Linear(8, 8).to("meta"), (torch.randn(4, 8, device="meta"),), {}, "")
    asked = Asked(tmp_path, network)
    asked.ask({"arm": "trial", "steps": 3})
    for _ in range(4):
        asked.optimizer.zero_grad()
        network.model(*network.args).square().mean().backward()
        asked.optimizer.step()
    asked.run.close()
    _, frames = stream(asked.run.id, tmp_path)
    assert ["device"] == [event.data["reason"] for event in events(frames, "directive.refused")]

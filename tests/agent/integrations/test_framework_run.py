"""What all integrations share: which values are sent, which settings are stored, and what a missing library says."""

from __future__ import annotations

import logging
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from ammeter.integrations.framework_run import FrameworkRun, framework, guarded, plain
from ammeter.integrations.optimizer_chain import inside
from tests.agent.integrations import own_scalers
from tests.agent.integrations.trained import Network, Recorded, runs, samples


def _trained(run: FrameworkRun, values: dict[str, Any], **facts: Any) -> None:
    model = Network()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    run.start([model], [optimizer], [None], facts.get("config", {}), facts.get("better"))
    for sample in samples(3):
        optimizer.zero_grad()
        model(sample["x"][None], sample["labels"][None])["loss"].backward()
        optimizer.step()
        run.log(values)
    run.close()


def test_numbers_are_sent_and_measured_columns_are_not_replaced(tmp_path: Path) -> None:
    values: dict[Any, Any] = {"loss": 9.0, "val_loss": torch.tensor(0.5), "a": np.float32(2), "b": 3}
    values |= {"step": 7, "text": "x", "flag": True, "none": None, "vector": torch.ones(2), 5: 1.0}
    _trained(FrameworkRun("torch", {"dir": tmp_path}), values)
    rows = Recorded(tmp_path)
    assert [9.0, 7.0, 0.5, 2.0, 3.0, 1.0] == [
        rows.logged(name)[2] for name in ("reported_loss", "reported_step", "val_loss", "a", "b", "5")
    ]
    assert 9.0 not in rows.logged("loss").values()
    assert set() == {"text", "flag", "none", "vector", "step"} & set(rows.rows.schema.scalars)


def test_the_config_of_the_user_has_priority(tmp_path: Path) -> None:
    run = FrameworkRun("torch", {"dir": tmp_path, "config": {"lr": 2}, "better": {"acc": "lower"}})
    _trained(run, {}, config={"lr": 1, "width": 4}, better={"acc": "higher", "f1": "higher"})
    hello = Recorded(tmp_path).hello
    assert {"framework": {"name": "torch", "version": torch.__version__, "lr": 1, "width": 4}, "lr": 2} == hello.config
    assert {"better.acc": "lower", "better.f1": "higher"} == hello.tags


def test_objects_and_empty_values_of_a_config_are_left_out() -> None:
    config = {"lr": 0.1, "bad": math.nan, "model": torch.nn.Linear(1, 1), "none": None, "sizes": [1, 2]}
    config |= {"mixed": [1, object()], "nested": {"depth": 3, "object": object()}, "empty": {}}
    assert {"lr": 0.1, "sizes": [1, 2], "nested": {"depth": 3}} == plain(config)


def test_a_run_starts_once_until_it_is_closed(tmp_path: Path) -> None:
    run = FrameworkRun("torch", {"dir": tmp_path})
    assert (True, False) == (run.begins(), run.begins())
    run.close()
    assert run.begins()
    assert [] == runs(tmp_path)


def test_the_scaler_of_a_library_below_the_framework_is_followed(tmp_path: Path) -> None:
    model, foreign = own_scalers.training(own_scalers.LikeDeepSpeed(2.0**24))
    run = FrameworkRun("torch", {"dir": tmp_path})
    run.start([model], [Wrapper(foreign)], [None], {})
    own_scalers.train(model, foreign, 4)
    run.close()
    assert [2.0**24 / 2**step for step in range(4)] == list(Recorded(tmp_path).logged("scale").values())


class Wrapper(torch.optim.Optimizer):
    """The optimizer of a framework around one that is not torch's; it never steps."""

    def __init__(self, optimizer: Any) -> None:
        self.optimizer = optimizer
        self.param_groups = optimizer.optimizer.param_groups


def test_an_optimizer_is_taken_out_of_others_that_are_not_torchs() -> None:
    _, foreign = own_scalers.training(own_scalers.LikeDeepSpeed(1.0))
    own = foreign.optimizer
    assert [own, own, own] == [inside(optimizer) for optimizer in (own, foreign, Wrapper(foreign))]
    around_own = Wrapper(foreign)
    around_own.optimizer = own
    assert around_own is inside(around_own)


def test_a_missing_library_is_named_with_the_remedy() -> None:
    with pytest.raises(ImportError, match=r"integrations.fabric: no_such_library .*, and nor_this .*'ammeter\[fabric"):
        framework("fabric", "no_such_library", "nor_this")
    assert framework("fabric", "no_such_library", "torch") is torch


def test_an_error_is_logged_once_and_goes_nowhere(caplog: pytest.LogCaptureFixture) -> None:
    @guarded
    def on_step() -> None:
        raise RuntimeError("no")

    with caplog.at_level(logging.WARNING, "ammeter"):
        on_step()
        on_step()
    assert ["ammeter: on_step failed (RuntimeError: no); training goes on"] == caplog.messages

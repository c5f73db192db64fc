"""The config of a program is recorded as plain data."""

from __future__ import annotations

from enum import IntEnum
from pathlib import Path

import numpy as np
import pytest
import torch

import ammeter
from ammeter.wire.frames import Hello
from tests.agent.training import stream


class Mode(IntEnum):
    FAST = 1


def test_a_config_of_any_values_is_written_as_plain_data(tmp_path: Path) -> None:
    model = torch.nn.Linear(2, 1)
    config = {
        "seed": 2**70,
        "lr": np.float64(0.5),
        "steps": np.int64(7),
        "mode": Mode.FAST,
        "nan": float("nan"),
        "path": Path("/data"),
        "dtype": torch.float16,
        "broken": "\ud800",
        3: [np.float32(1.5), None, {"nested": (1, 2)}],
    }
    run = ammeter.watch(model, torch.optim.SGD(model.parameters(), lr=1), config=config, tags={"n": 1}, dir=tmp_path)  # type: ignore[arg-type, dict-item]
    run.close()
    _, frames = stream(run.id, tmp_path)
    hello = next(frame for frame in frames if isinstance(frame, Hello))
    assert repr(float("nan")) == repr(hello.config.pop("nan"))
    assert {
        "seed": str(2**70),
        "lr": 0.5,
        "steps": 7,
        "mode": 1,
        "path": "/data",
        "dtype": "torch.float16",
        "broken": "?",
        "3": [1.5, None, {"nested": [1, 2]}],
    } == hello.config
    assert {"n": "1"} == hello.tags


def test_a_config_that_is_no_dict_is_refused_with_the_way_to_make_one() -> None:
    import argparse

    model = torch.nn.Linear(2, 1)
    with pytest.raises(TypeError, match=r"config is a Namespace; watch\(\) takes a dict, such as vars\(arguments\)"):
        ammeter.watch(model, torch.optim.SGD(model.parameters(), lr=1), config=argparse.Namespace(lr=1))  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"tags is a list; watch\(\) takes a dict, such as {'team': 'vision'}"):
        ammeter.watch(model, torch.optim.SGD(model.parameters(), lr=1), tags=["friday"])  # type: ignore[arg-type]

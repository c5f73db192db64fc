"""Each peer that needs no other package is measured."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from bench.agent import ammeter_peers, other_peers
from bench.agent.ammeter_peers import PRESETS
from bench.agent.comparison import Outcome
from bench.agent.training import Training
from bench.common.paths import ROOT
from tests.bench.agent.tiny import TINY, compared

OF_TORCH = (other_peers.Norms, other_peers.DetectAnomaly, other_peers.EmptyHooks, other_peers.AbsmaxHooks)


@pytest.mark.parametrize("precision", ["bf16", "fp16"])
def test_every_peer_that_needs_no_package_is_measured(precision: str) -> None:
    found = compared(OF_TORCH, TINY[precision])
    assert [peer.name for peer in OF_TORCH] == [peer.name for peer in found if isinstance(peer, Outcome)]
    assert not torch.is_anomaly_enabled()


def test_each_preset_reports_its_cost_and_reads_as_often_as_promised() -> None:
    said = {
        outcome.name: outcome.self_reported
        for outcome in compared(PRESETS, TINY["fp32"])
        if isinstance(outcome, Outcome)
    }
    assert {peer.name for peer in PRESETS} == set(said)
    assert all(0 < report["overhead"] < 1 and 0 < report["mean_overhead"] < 1 for report in said.values())
    assert (1, 1) == (said[ammeter_peers.AmmeterFull.name]["norms"], said[ammeter_peers.AmmeterFull.name]["statistics"])
    assert 0 == said[ammeter_peers.AmmeterLight.name]["statistics"]


def test_steps_before_the_first_block_are_not_reported(tmp_path: Path) -> None:
    peer = ammeter_peers.SettledFull(Training(TINY["fp32"]), tmp_path)
    with pytest.raises(RuntimeError, match=f"no row in {tmp_path} has"):
        peer.close()


def test_the_package_of_every_peer_has_a_pinned_version() -> None:
    files = (ROOT / "bench" / "requirements.txt", ROOT / "constraints.txt")
    pinned = [line for file in files for line in file.read_text().splitlines() if not line.startswith("#")]
    versions = dict(line.split("==") for line in pinned)
    assert {"wandb", "tensorboard", "transformers", "mlflow-skinny"} <= set(versions)

"""The benchmark of bad steps finds the operators that it plants, and its table has every graph."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from bench.agent.bad_steps import __main__ as bad_steps
from bench.agent.bad_steps.graphs import Graph, bad_backward, bad_forward, graphs, healthy
from tests.bench.agent.tiny import TINY


def test_the_planted_operators_make_nan_in_the_pass_that_they_name() -> None:
    for graph in graphs()[:2]:
        assert torch.isfinite(graph.loss(healthy))
        assert not torch.isfinite(graph.loss(bad_forward))
        assert torch.isfinite(graph.loss(bad_backward))


def test_the_spread_has_the_median_and_the_quartiles() -> None:
    assert "2.0 (1.0 to 3.0)" == bad_steps.spread([1.0, 2.0, 3.0])
    assert "4.0 (4.0 to 4.0)" == bad_steps.spread([4.0])


def test_a_search_that_misses_its_operator_is_no_measurement() -> None:
    weight = torch.ones(2, requires_grad=True)
    elsewhere = Graph("sum", lambda _: (weight * torch.inf).sum(), 2)
    with pytest.raises(RuntimeError, match="did not find the operator"):
        bad_steps._search(elsewhere, tries=True)


def test_the_result_file_has_a_row_of_each_graph(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bad_steps, "SHORT_STEPS", (TINY["bf16"],))
    few = graphs()[:2]
    monkeypatch.setattr(bad_steps, "graphs", lambda: few)
    bad_steps.main(["--quick", "--write", str(tmp_path)])
    text = (tmp_path / "bad_steps.md").read_text()
    assert all(f"| {graph.name} |" in text for graph in few)
    assert "Without a bad step, steps of bf16 take" in text

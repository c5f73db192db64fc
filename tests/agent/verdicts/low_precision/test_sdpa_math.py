"""sdpa-math fires where a GPU runs attention written out; without a GPU there may be no other way."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

from ammeter.verdicts.causality import explain
from ammeter.verdicts.framework.finding import Finding
from tests.agent.stream_builder import Stream, warm
from tests.agent.stream_judgement import findings
from tests.agent.streams_kernels import GIB, census, fallback, memory, on_gpu
from tests.agent.training import watching


def told(share: float = 0.2, stream: Stream | None = None) -> Stream:
    stream = census(stream or on_gpu(), 1 - share, attention=["math"])
    return fallback(stream, "sdpa-math", share, op="bmm", module="blocks.0.attention", caller="model.py:41")


def found(stream: Stream) -> Finding:
    return findings(stream)["sdpa-math"]


def test_it_names_the_modules_the_line_and_how_to_hear_torchs_reason() -> None:
    finding = found(told())
    assert ("ticket", 2, "blocks.0.attention") == (finding.severity, finding.opened_step, finding.module)
    assert (
        "in blocks.0.attention and 1 similarly named module at model.py:41 uses torch's math backend" in finding.cause
    )
    assert "20 % of the matrix FLOPs of a forward pass" in finding.cause
    assert "Run the call at model.py:41 once inside torch.nn.attention.sdpa_kernel([SDPBackend.FLASH_ATTENTION," in (
        finding.fix
    )


def test_less_than_2_percent_is_attention_over_a_few_positions() -> None:
    assert {} == findings(told(0.019))
    assert {"sdpa-math"} == set(findings(told(0.02)))


def test_without_a_gpu_it_is_silent() -> None:
    assert {} == findings(told(stream=warm(3)))


def test_it_is_told_once() -> None:
    assert 1 == found(told(stream=told().good(65536))).times


def test_memory_that_runs_short_after_it_is_its_consequence() -> None:
    stream = memory(told(stream=warm(30)), 10, used=70 * GIB, held=79 * GIB, more=2)
    stream.frames[0] = on_gpu().frames[0]
    (cause,) = explain([("stream", finding) for finding in findings(stream).values()])
    assert ("sdpa-math", ["memory-not-saved"]) == (
        cause.finding.verdict,
        [consequence.verdict for consequence in cause.consequences],
    )


class Attending(torch.nn.Module):
    """One head of attention."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv = torch.nn.Linear(64, 192)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = self.qkv(x).chunk(3, dim=-1)
        return torch.nn.functional.scaled_dot_product_attention(q[:, None], k[:, None], v[:, None])


def run(folder: Path, model: torch.nn.Module, **autocast: Any) -> tuple[dict[str, Finding], list[tuple[str, str]]]:
    """What is found, and (module, reason) of each fallback."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with watching(folder, model, optimizer) as seen:
        for _ in range(4):
            x = torch.randn(4, 32, 64, dtype=next(model.parameters()).dtype)
            with sdpa_kernel(SDPBackend.MATH), torch.autocast("cpu", torch.bfloat16, **autocast):
                loss = model(x).float().square().mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
    emitted = [(event.data["module"], event.data["reason"]) for event in seen.events("kernel.fallback")]
    return seen.findings(), emitted


def test_on_the_cpu_the_math_path_is_seen_and_no_finding(tmp_path: Path) -> None:
    found, told = run(tmp_path, Attending())
    assert {("", "sdpa-math")} == set(told)
    assert {} == found


def test_in_a_model_of_half_weights_it_is_no_missing_autocast(tmp_path: Path) -> None:
    found, told = run(tmp_path, Attending().bfloat16(), enabled=False)
    assert {("", "sdpa-math")} == set(told)
    assert "fp32-fallback" not in found

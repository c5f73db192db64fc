"""kernel-nan leads where an operator that ran again is finite with another kernel, and not where numbers are bad."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn import functional

from ammeter.verdicts.causality import Explained, explain
from ammeter.verdicts.framework.finding import Finding
from ammeter.wire.frames import Hello
from tests.agent.probes.origin import planted_kernels
from tests.agent.stream_builder import Stream, warm
from tests.agent.stream_judgement import findings
from tests.agent.streams_values import born, poisoned
from tests.agent.training import watching

GELU = {"op": "GeluBackward0", "absmax": 3.1, "nans": 4, "confidence": "graph", "caller": "train.py:12"}
AT_FAULT = GELU | {"trial": "kernel", "exact": 2.5, "module": "blocks.1.mlp"}


def stream(**data: Any) -> Stream:
    return born(warm(40).bad(65536, last=5, loss=np.nan), since=0, **data)


def found(**data: Any) -> Finding:
    return findings(stream(**data))["kernel-nan"]


def test_operator_module_answer_and_program_are_named() -> None:
    finding = found(**AT_FAULT, reproducer="reproducers/step-40-GeluBackward0.py")
    assert ("page", 40, 40, "blocks.1.mlp") == (
        finding.severity,
        finding.first_step,
        finding.opened_step,
        finding.module,
    )
    assert "A float16 kernel of Gelu makes NaN or Inf in blocks.1.mlp" == finding.title
    assert "the kernel is at fault, not the numbers" in finding.cause
    assert "reproducers/step-40-GeluBackward0.py in the run's folder shows it" in finding.fix
    assert ("kernel", 2.5) == (finding.evidence["trial"], finding.evidence["exact_absmax"])


@pytest.mark.parametrize(
    ("op", "dtype", "switch"),
    [
        ("ScaledDotProductFlashAttentionForCpuBackward0", "bfloat16", "sdpa_kernel(SDPBackend.MATH)"),
        ("ConvolutionBackward0", "float16", "torch.backends.cudnn.enabled = False"),
        ("AddmmBackward0", "bfloat16", "torch.backends.mkldnn.flags(enabled=False)"),
        ("GeluBackward0", "float16", "in float32 under torch.autocast"),
        ("GeluBackward0", "float32", "in float64, or from simpler operators"),
    ],
)
def test_the_fix_is_another_kernel_of_this_operator(op: str, dtype: str, switch: str) -> None:
    assert switch in found(**AT_FAULT | {"op": op, "dtype": dtype}).fix


def test_a_kernel_that_does_not_repeat_its_result_is_named() -> None:
    assert "its kernel does not repeat its result" in found(**AT_FAULT | {"trial": "differs"}).cause


@pytest.mark.parametrize("trial", ["", "range", "undefined", "unsteady"])
def test_other_answers_accuse_no_kernel(trial: str) -> None:
    assert "kernel-nan" not in findings(stream(**AT_FAULT | {"trial": trial}))


def test_gradients_that_no_step_applied_are_a_ticket_until_a_weight_is_hit() -> None:
    data = AT_FAULT | {"kind": "backward"}
    assert "ticket" == found(**data).severity
    finding = findings(poisoned(stream(**data), "blocks.1.mlp.weight"))["kernel-nan"]
    assert ("page", "blocks.1.mlp.weight") == (finding.severity, finding.evidence["nonfinite_weight"])


def test_a_part_of_the_module_that_hooks_find_later_keeps_the_trial() -> None:
    part = {"op": "GeluBackward0", "module": "blocks.1.mlp.act", "class": "GELU", "absmax": 3.1, "nans": 4}
    found = findings(born(stream(**AT_FAULT).bad(32768, last=5, loss=np.nan), **part))
    for name in ("kernel-nan", "nonfinite-loss"):
        assert "blocks.1.mlp.act" == found[name].module
        assert "kernel" == found[name].evidence["trial"]


@pytest.mark.parametrize(
    ("verdict", "data"),
    [
        ("masked-row-nan", {"op": "SoftmaxBackward0", "class": "Softmax", "nans": 4}),
        ("activation-overflow", {"op": "AddmmBackward0", "class": "Linear", "nans": 0, "infs": 4}),
    ],
)
def test_what_hooks_find_of_the_same_operator_suspects_nothing_else(verdict: str, data: dict[str, Any]) -> None:
    later = {"absmax": 3.1, **data}
    begun = warm(40).bad(65536, last=5, loss=np.nan).bad(32768, last=5, loss=np.nan)
    assert verdict in findings(born(begun, **later))
    begun = stream(**AT_FAULT | data).bad(32768, last=5, loss=np.nan)
    assert verdict not in findings(born(begun, **later))


def test_a_program_that_ends_itself_at_a_bad_loss_names_the_kernel() -> None:
    begun = warm(40).event(
        "step.unfinished", step=40, loss=float("nan"), backward=False, origin={**AT_FAULT, "kind": "forward"}
    )
    assert "kernel-nan" in findings(begun)


def test_the_facts_that_decide_the_kernel_are_evidence() -> None:
    begun = stream(**AT_FAULT)
    hello = next(frame for frame in begun.frames if isinstance(frame, Hello))
    hello.environment.update({"cudnn": "91002", "capability": "9.0"})
    assert "91002" == findings(begun)["kernel-nan"].evidence["cudnn"]


@pytest.mark.parametrize(
    ("torch_version", "device", "matches"), [("2.6.0", "cpu", True), ("2.13.0", "cpu", False), ("2.6.0", "cuda", False)]
)
def test_a_known_bug_that_matches_is_named_with_its_thread(torch_version: str, device: str, matches: bool) -> None:
    begun = stream(**AT_FAULT | {"op": "NativeBatchNormBackward0", "kind": "backward", "device": device})
    next(frame for frame in begun.frames if isinstance(frame, Hello)).environment["torch"] = torch_version
    finding = findings(begun)["kernel-nan"]
    assert (["pytorch/pytorch#147303"] if matches else []) == finding.evidence["known_bugs"]
    sentence = "A known bug that matches operator and machine: https://github.com/pytorch/pytorch/issues/147303 ("
    assert matches == (sentence in finding.fix)


class Activated(torch.nn.Module):
    def __init__(self, activation: Callable[[torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self.activation = activation
        self.enter, self.leave = torch.nn.Linear(12, 20), torch.nn.Linear(20, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        output: torch.Tensor = self.leave(self.activation(self.enter(x)))
        return output


def causes(folder: Path, activation: Callable[[torch.Tensor], torch.Tensor], dtype: torch.dtype) -> list[Explained]:
    torch.manual_seed(0)
    model = Activated(activation)
    optimizer, scaler = (
        torch.optim.SGD(model.parameters(), 1e-3),
        torch.amp.GradScaler("cpu", enabled=dtype is torch.float16),
    )
    with watching(folder, model, optimizer, scaler) as seen:
        for _ in range(6):
            with torch.autocast("cpu", dtype):
                loss = model(torch.randn(8, 12)).float().square().mean()
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
    return explain([("stream", finding) for finding in seen.findings().values()])


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_a_wrong_kernel_is_the_one_cause(dtype: torch.dtype, tmp_path: Path) -> None:
    with planted_kernels.planted("silu", planted_kernels.silu):
        (cause,) = causes(tmp_path, functional.silu, dtype)
    assert "kernel-nan" == cause.finding.verdict
    assert "nonfinite-loss" in [finding.verdict for finding in cause.consequences]


@pytest.mark.parametrize("activation", [lambda x: x * 1e6, lambda x: torch.log(x)], ids=["overflow", "undefined"])
def test_numbers_that_are_bad_accuse_no_kernel(
    activation: Callable[[torch.Tensor], torch.Tensor], tmp_path: Path
) -> None:
    found = [cause.finding.verdict for cause in causes(tmp_path, activation, torch.float16)]
    assert found
    assert "kernel-nan" not in found

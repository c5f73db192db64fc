"""unsupported-op fires at the error, with the operator, its module and the line, and says where the cast belongs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from ammeter.verdicts.framework.finding import Finding
from tests.agent.stream_builder import Stream, warm
from tests.agent.stream_judgement import findings
from tests.agent.training import line_of, watching


def raised(**more: Any) -> Stream:
    data: dict[str, Any] = {"caller": "model.py:12", "op": "linear", "dtypes": ["float16", "float32"]}
    data |= {"module": "blocks.2.fc", "backward": False, "message": "expected m1 and m2 to have the same dtype"}
    return warm(7).event("usage.unsupported_op", **(data | more)).bye("exception", "RuntimeError")


def found(stream: Stream) -> Finding:
    return findings(stream)["unsupported-op"]


def test_it_opens_at_once_and_names_operator_module_line_and_dtypes() -> None:
    finding = found(raised())
    assert ("ticket", 6, 6) == (finding.severity, finding.first_step, finding.opened_step)
    assert ("blocks.2.fc", "model.py:12") == (finding.module, finding.caller)
    assert "linear does not support float16 with float32" == finding.title
    assert finding.cause.startswith("linear in blocks.2.fc at model.py:12 raised in the")
    assert "forward pass because its inputs were float16 and float32 together" in finding.cause
    assert "expected m1 and m2 to have the same dtype" in finding.cause
    assert "Cast the inputs at model.py:12 to one dtype" in finding.fix


def test_an_operator_without_a_kernel_for_the_dtype_is_to_run_in_float32() -> None:
    finding = found(raised(op="linalg_inv_ex", dtypes=["float16"]))
    assert "its inputs were float16, for which it has no kernel" in finding.cause
    assert "Run the operator at model.py:12 in float32" in finding.fix


def test_an_error_in_backward_is_mended_in_the_custom_function() -> None:
    finding = found(raised(backward=True, module=""))
    assert "linear at model.py:12 raised in the backward pass" in finding.cause
    assert "custom_bwd" in finding.fix
    assert finding.module is None


def test_a_mask_of_minus_1e9_is_replaced_by_the_smallest_number_of_the_dtype() -> None:
    message = "value cannot be converted to type c10::Half without overflow"
    finding = found(raised(op="masked_fill", dtypes=["float16"], problem="overflow", message=message))
    assert "A number in the program is too large for float16" == finding.title
    assert "given a number beyond the largest float16, 65504" in finding.cause
    assert "torch.finfo(scores.dtype).min" in finding.fix
    assert "overflow" == finding.evidence["problem"]


def test_checkpointing_in_another_dtype_needs_autocast_around_it() -> None:
    message = "torch.utils.checkpoint: Recomputed values for the following tensors have different metadata"
    finding = found(raised(op="", dtypes=["bfloat16", "float32"], problem="recomputed", message=message, backward=True))
    assert "Checkpointing recomputes in another dtype" == finding.title
    assert "computed a tensor in bfloat16 in the forward pass and in float32 when it ran" in finding.cause
    assert "Enter autocast outside of checkpoint()" in finding.fix
    assert "custom_bwd" not in finding.fix


def test_a_criterion_of_mixed_dtypes_is_no_custom_function() -> None:
    finding = found(raised(op="backward", backward=True, message="Found dtype Float but expected Half"))
    assert "criterion(output.float(), target)" in finding.fix
    assert "custom_bwd" not in finding.fix


def test_the_evidence_names_a_problem_only_where_there_is_one() -> None:
    assert "problem" not in found(raised()).evidence


@pytest.mark.parametrize("op", ["", "forward"])
def test_an_operator_that_is_not_known_has_no_name(op: str) -> None:
    finding = found(raised(op=op, message="", module="", caller=""))
    assert (
        "An operator raised in the forward pass because its inputs were float16 and float32 together." == finding.cause
    )


def test_a_run_that_another_exception_ended_is_none_of_its_business() -> None:
    assert {} == findings(warm(7).bye("exception", "ValueError: half of the batch is missing"))


def test_it_is_told_once() -> None:
    stream = warm(3)
    for op in ("linear", "bmm"):
        stream.good(65536.0).event("usage.unsupported_op", op=op, dtypes=["float16"], caller="a.py:1", module="fc")
    finding = found(stream)
    assert (1, "linear") == (finding.times, finding.evidence["op"])


class Gate(torch.nn.Module):
    """Multiplies outside autocast by a weight in float32."""

    def __init__(self, casts: bool) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(6, 6))
        self.casts = casts

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cpu", enabled=False):
            return (x.float() if self.casts else x) @ self.weight


@pytest.mark.parametrize("casts", [False, True])
def test_a_real_error_is_found_with_its_module_and_a_cast_keeps_it_silent(casts: bool, tmp_path: Path) -> None:
    model = torch.nn.Sequential(torch.nn.Linear(6, 6), torch.nn.ModuleDict({"gate": Gate(casts)})["gate"])
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    with watching(tmp_path, model, optimizer) as seen, torch.autocast("cpu", torch.bfloat16):
        if casts:
            model(torch.randn(4, 6))
        else:
            with pytest.raises(RuntimeError, match="same dtype"):
                model(torch.randn(4, 6))
    findings = seen.findings()
    assert ([] if casts else ["unsupported-op"]) == list(findings)
    for finding in findings.values():
        assert "1" == finding.module
        assert (finding.caller or "").endswith(line_of(Gate.forward, "@ self.weight"))
        assert "bfloat16 and float32 together" in finding.cause

"""dtype-switched names the module, both dtypes, the state of autocast, and what to do about it."""

from __future__ import annotations

from typing import Any

from ammeter.verdicts.causality import explain
from ammeter.verdicts.framework.finding import Finding
from tests.agent.stream_builder import warm
from tests.agent.stream_judgement import findings
from tests.agent.streams_kernels import recomputed

NAME = "dtype-switched"


def found(**more: Any) -> Finding:
    return findings(recomputed(warm(3), **more))[NAME]


def test_a_run_that_recomputes_in_the_same_dtype_has_no_such_event_and_is_silent() -> None:
    assert NAME not in findings(warm(30))


def test_it_begins_with_the_first_step_that_showed_it() -> None:
    assert (1, 2) == (found().first_step, found().opened_step)


def test_it_names_module_line_and_both_dtypes() -> None:
    finding = found()
    assert ("blocks.3.fc", "blocks.py:31") == (finding.module, finding.caller)
    assert "blocks.3.fc runs in bfloat16, but is recomputed in float16 in backward()" == finding.title
    assert finding.cause.startswith(
        "blocks.3.fc returned bfloat16 in the forward pass, and float16 when an autograd.Function ran it again in"
        " backward() at blocks.py:31. The same holds for 4 other modules. Autocast was on with bfloat16 in the forward"
        " pass and on with float16 in the recomputation. The gradients of this part therefore belong to other numbers"
        " than those that the loss was computed from."
    )
    assert "may overflow or underflow" in finding.cause
    assert finding.fix.startswith(
        "Run the recomputation at blocks.py:31 under torch.autocast(device_type, dtype=torch.bfloat16)"
    )


def test_float32_is_called_more_exact_and_dearer() -> None:
    finding = found(again="float32", autocast_again="off", modules=1)
    assert "and off in the recomputation." in finding.cause
    assert "The same holds" not in finding.cause
    assert finding.cause.endswith("and the recomputation costs the time and memory of float32.")


def test_a_checkpoint_of_torch_has_the_line_of_backward_and_a_remedy_of_its_own() -> None:
    finding = found(checkpoint=True, caller="")
    assert "train.py:50" == finding.caller
    assert "torch.utils.checkpoint ran it again in backward() at train.py:50." in finding.cause
    assert finding.fix.startswith("Enter autocast outside of checkpoint()")
    assert "context_fn" in finding.fix


def test_without_a_difference_of_autocast_the_remedy_is_the_casts() -> None:
    finding = found(autocast_again="bfloat16")
    assert "Autocast was on with bfloat16 in both passes." in finding.cause
    assert finding.fix.startswith("Give the recomputation at blocks.py:31 inputs and weights in the dtypes")


def test_an_error_is_told() -> None:
    assert "The recomputation then raised an error." in found(raised=True).cause
    finding = found(raised=True, again="", autocast_again="off", modules=1)
    assert "backward() recomputes a part of the forward pass under another autocast" == finding.title
    assert finding.cause == (
        "blocks.3.fc ran in the forward pass and raised an error when an autograd.Function ran it again in"
        " backward() at blocks.py:31. Autocast was on with bfloat16 in the forward pass and off in the recomputation."
        " Its operators therefore received other dtypes than before."
    )


def test_a_missing_loss_scale_is_a_consequence_only_of_a_recomputation_in_float16() -> None:
    other = Finding("no-loss-scaling", "ticket", 0, 9, 20, "cause", "fix")
    (only,) = explain([("a", found()), ("a", other)])
    assert (NAME, ["no-loss-scaling"]) == (only.finding.verdict, [each.verdict for each in only.consequences])
    of_float16 = found(dtype="float16", autocast="float16", again="float32", autocast_again="off")
    assert {NAME, "no-loss-scaling"} == {each.finding.verdict for each in explain([("a", of_float16), ("a", other)])}

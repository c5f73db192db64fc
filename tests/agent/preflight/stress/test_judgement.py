"""The operators of real models are found with module and line, and fail where float16 or bfloat16 really fails."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from ammeter.preflight.stress import judgement

MODELS = "tests.agent.preflight.models"
HALF = ["float16", "bfloat16"]


def rows(name: str, dtypes: list[str] | None = None, *, half: bool = False) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = judgement.of_factory(f"{MODELS}:{name}", dtypes or ["float16"], 8.0, half, 0)["rows"]
    return found


def failing(found: list[dict[str, Any]]) -> set[tuple[str, str]]:
    return {(row["operator"], row["dtype"]) for row in found if row.get("fails")}


def only(found: list[dict[str, Any]], operator: str, dtype: str = "float16") -> dict[str, Any]:
    (row,) = [row for row in found if (row["operator"], row["dtype"]) == (operator, dtype)]
    return row


@pytest.mark.parametrize("name", ["mlp", "convnet", "transformer", "encoder", "own_norm"])
def test_no_operator_of_a_healthy_model_fails(name: str) -> None:
    found = rows(name, [*HALF, "float32"])
    assert found
    assert set() == failing(found)
    assert all(row["error"] < 0.05 for row in found if not row["untried"])


def test_the_operators_of_a_transformer_have_module_and_line() -> None:
    found = {row["operator"]: row for row in rows("transformer")}
    assert {"layer_norm", "linear", "matmul", "softmax", "log_softmax", "nll_loss"} <= set(found)
    assert ("blocks.*.norm", 2) == (found["layer_norm"]["module"], found["layer_norm"]["calls"])
    assert found["softmax"]["module"] == "blocks.*"
    assert "models.py:" in found["softmax"]["line"]
    assert found["softmax backward"]["line"] == found["softmax"]["line"]


def test_operators_inside_torchs_own_modules_are_seen() -> None:
    found = {row["operator"]: row["module"] for row in rows("encoder")}
    assert found["attention"].startswith("layer")
    assert found["layer_norm"].startswith("layer.norm")


def test_a_product_of_queries_and_keys_that_overflows_fails_in_float16_only() -> None:
    found = rows("sharp_transformer", HALF)
    assert ("matmul", "float16") in failing(found)
    assert ("matmul", "bfloat16") not in failing(found)
    worst = next(row for row in found if row.get("fails") and row["operator"] == "matmul")
    assert worst["bad"] == "Inf" or worst["larger"]["factor"] <= 8


def test_squares_that_overflow_fail_where_the_model_is_in_float16_itself() -> None:
    half = rows("large_own_norm", half=True)
    assert {("pow", "float16"), ("sum", "float16")} & failing(half)
    assert set() == failing(rows("own_norm", half=True))


def test_the_headroom_is_the_power_of_two_at_which_the_numbers_overflow() -> None:
    row = only(rows("own_norm", half=True), "pow")
    largest = row["absmax"]
    assert row["larger"]["bad"] == "Inf"
    assert (largest * row["headroom"]) ** 2 > torch.finfo(torch.float16).max
    assert (largest * row["headroom"] / 2) ** 2 < torch.finfo(torch.float16).max * 1.001


def test_an_operator_that_the_model_runs_in_float32_below_autocast_is_not_counted() -> None:
    exposed, spared = only(rows("large_own_norm"), "pow"), only(rows("large_own_norm_in_float32"), "pow")
    assert (True, True, True) == (exposed["breaks"], exposed["used"], exposed["fails"])
    assert (True, False, False) == (spared["breaks"], spared["used"], spared["fails"])


def test_the_loss_that_ammeter_makes_up_is_no_operator_of_the_model() -> None:
    assert {"models.py"} == {row["line"].partition(":")[0].rpartition("/")[2] for row in rows("own_norm")}


def test_degenerate_rows_are_tried() -> None:
    found = rows("transformer", ["bfloat16"])
    norm, softmax = only(found, "layer_norm", "bfloat16"), only(found, "softmax", "bfloat16")
    assert norm["changes"]["constant rows"]["error"] > 10 * norm["error"]
    assert norm["changes"]["offset"]["error"] > norm["error"]
    assert softmax["changes"]["masked row"]["bad"] == "NaN"


def test_a_longer_sum_overflows() -> None:
    row = only(rows("large_own_norm", half=True), "sum")
    assert row["bad"] or row["changes"]["longer"]["bad"] == "Inf"


def test_the_weights_and_running_averages_stay_out_of_the_trials() -> None:
    found = rows("convnet", HALF)
    assert {"batch_norm", "convolution"} <= {row["operator"] for row in found if not row["untried"]}

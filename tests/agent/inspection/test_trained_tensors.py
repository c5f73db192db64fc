from __future__ import annotations

import pytest

from ammeter.inspection.trained_tensors import Shapes, absent_tensors

TRAINED: Shapes = {"a.weight": (3, 4), "a.bias": (3,), "head.weight": (5, 3)}


def under(prefix: str, shapes: Shapes = TRAINED) -> dict[str, tuple[int, ...]]:
    return {f"{prefix}{name}": shape for name, shape in shapes.items()}


@pytest.mark.parametrize("prefix", ["", "model.", "state.model.module.", "model._orig_mod.", "0.module."])
def test_a_prefix_or_a_wrapper_in_the_names_hides_no_tensor(prefix: str) -> None:
    assert "" == absent_tensors(under(prefix), TRAINED)


def test_a_wrapper_in_the_names_of_the_run_hides_none_either() -> None:
    assert "" == absent_tensors(under("model."), under("_orig_mod.module."))


def test_a_tensor_that_is_not_there_is_named() -> None:
    read = under("model.")
    del read["model.head.weight"]
    assert "1 of 3 trained tensors, head.weight first" == absent_tensors(read, TRAINED)


def test_a_tensor_of_another_shape_is_not_the_one_that_is_trained() -> None:
    assert "1 of 3 trained tensors, a.bias first" == absent_tensors({**under(""), "a.bias": (4,)}, TRAINED)


def test_a_tensor_of_the_shape_under_another_name_may_be_the_one() -> None:
    read = under("model.")
    read["model.decoder.tied"] = read.pop("model.head.weight")
    assert "" == absent_tensors(read, TRAINED)


def test_a_checkpoint_with_names_of_its_own_is_not_compared() -> None:
    assert "" == absent_tensors({"x": (3, 4)}, TRAINED)


def test_nothing_is_absent_if_nothing_is_known_of_the_run() -> None:
    assert "" == absent_tensors(under(""), {})

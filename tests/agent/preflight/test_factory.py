"""MODULE:FACTORY gives a model with inputs, and each mistake has an error with its value and remedy."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from ammeter.preflight import factory
from ammeter.preflight.factory import BadFactory

MODELS = "tests.agent.preflight.models"


def refused(spelling: str, **given: object) -> str:
    with pytest.raises(BadFactory) as caught:
        factory.make(spelling, given)
    return str(caught.value)


@pytest.mark.parametrize("name", ["mlp", "convnet", "transformer", "encoder"])
def test_a_factory_gives_a_model_whose_loss_can_be_trained(name: str) -> None:
    loss = factory.make(f"{MODELS}:{name}").loss()
    assert (0, True) == (loss.dim(), loss.requires_grad)


def test_a_factory_gets_the_arguments_that_are_varied() -> None:
    assert 7 == len(factory.make(f"{MODELS}:mlp", {"batch_size": 7}).args[0])


def test_a_module_may_be_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))
    file = tmp_path / "factory_in_a_file.py"
    file.write_text("import torch\ndef make():\n    return torch.nn.Linear(3, 2), torch.ones(1, 3)\n")
    assert isinstance(factory.make(f"{file}:make").module, torch.nn.Linear)


def test_a_bad_spelling_is_named_with_a_right_one() -> None:
    assert refused("train").startswith("'train' is not MODULE:FACTORY; use MODULE:FACTORY, such as train:make_model")
    assert refused("nowhere_at_all:make").startswith("there is no module 'nowhere_at_all' in ")
    assert refused("nowhere/model.py:make").startswith("there is no file 'nowhere/model.py' in ")
    assert refused(f"{MODELS}:transformr") == f"{MODELS} has no function 'transformr'; use {MODELS}:transformer"
    assert refused(f"{MODELS}:not_callable").endswith("is of type int; name a function that returns a model")


def test_what_a_factory_must_return_is_said() -> None:
    assert "returned Transformer without example inputs; return (module, inputs), where" in refused(f"{MODELS}:bare")
    assert "returned int; return (module, inputs), where" in refused(f"{MODELS}:nothing")
    assert "returned a loss of type int; return (module" in refused(f"{MODELS}:with_loss_of_type_int")


def test_arguments_that_do_not_fit_are_named() -> None:
    assert refused(f"{MODELS}:needing") == f"{MODELS}:needing needs the argument 'width'; give it a default"
    text = refused(f"{MODELS}:mlp", depth=3)
    assert text == f"{MODELS}:mlp takes no argument 'depth'; add it to the function, or do not vary it"


def test_a_module_that_trains_when_it_is_imported_is_told_from_a_missing_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "raises_in_import.py").write_text("x = 1\nraise ValueError('no data')\n")
    (tmp_path / "needs_another.py").write_text("import a_missing_package\n")
    text = refused("raises_in_import:make")
    assert text.startswith("raises_in_import raised ValueError: no data while it was imported, at ")
    assert "raises_in_import.py:2; put its training below" in text
    assert "needs_another imports 'a_missing_package', which is not installed" in refused("needs_another:make")


def test_a_model_without_a_number_in_its_output_needs_a_loss() -> None:
    module = torch.nn.Identity()
    with pytest.raises(BadFactory, match="returned int without a floating-point tensor; return"):
        factory.Example(module, (3,), {}).loss()

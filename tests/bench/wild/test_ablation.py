"""One hook of torch off: the agent patches none of its names, and the program is watched all the same."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import pytest

from bench.common.paths import ROOT
from bench.wild import ablation, runner
from bench.wild.ablation import HOOKS
from bench.wild.recipe import Recipe
from bench.wild.runner import Case, Measure
from tests import forked
from tests.ranks import without_settings

EVERYTHING = """
import json
import torch
import ammeter
from ammeter.torch_hooks import optimizer_steps, patch
from torch.optim import optimizer as hooks

model = torch.nn.Linear(4, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
scaler = torch.amp.GradScaler("cpu")
run = ammeter.watch(model, optimizer, scaler)
names, heard = [], []
for key, one in patch._patches.items():
    name = f"{one.owner.__name__}.{one.name}"
    names.append(name)
    if vars(one.owner).get(one.name) is one.wrapper:
        heard.append(name)
print(json.dumps([names, heard, len(hooks._global_optimizer_post_hooks)]))
"""

ALSO_PATCHED = r"\w+\.__call__|sys\.exit"
"""Names that are not of torch's API: the calls of watched modules, and the end of the program."""


def patched(folder: Path, without: str) -> tuple[list[str], list[str], int]:
    """Names that the agent patches, those that are patched, and the number of torch's hooks of optimizers."""
    environment = {**without_settings(), "AMMETER_DIR": str(folder), **ablation.environment(without)}
    command = [sys.executable, "-c", EVERYTHING]
    done = forked.run(
        command, imports=forked.LAUNCH, env=environment, cwd=ROOT, capture_output=True, timeout=120, check=True
    )
    names, heard, hooks = json.loads(done.stdout.splitlines()[-1])
    return names, heard, hooks


def test_every_patched_name_belongs_to_a_hook(tmp_path: Path) -> None:
    names, heard, hooks = patched(tmp_path, "")
    known = {name for hook in HOOKS.values() for name in hook.names}
    methods = {name.partition(".")[2] for name in known}
    assert names == heard
    assert hooks
    unknown = [name for name in names if name not in known and name.rpartition(".")[2] not in methods]
    assert [] == [name for name in unknown if not re.fullmatch(ALSO_PATCHED, name)]


def test_hooks_that_are_off_are_not_patched_and_all_others_are(tmp_path: Path) -> None:
    names, heard, hooks = patched(tmp_path, "scheduler.step,backward,optimizer.step")
    off = {"torch.autograd.backward", "torch.autograd.grad", *(name for name in names if name.endswith(".step"))}
    assert "GradScaler.step" in heard
    assert set(names) - set(heard) == off - {"GradScaler.step"}
    assert 0 == hooks


def test_no_hook_is_off_by_default() -> None:
    assert {} == ablation.environment(ablation.hooks(""))


def test_a_program_uses_the_hooks_that_its_text_calls() -> None:
    text = "opt = torch.optim.SGD(p)\nscaler = GradScaler('cpu')\nscaler.unscale_(opt)\nloss.backward()"
    expected = {"optimizer.init", "optimizer.step", "scaler.init", "scaler.step", "scaler.update", "scaler.unscale_"}
    assert {*expected, "backward"} == set(ablation.used_by(text))


def test_an_unknown_hook_is_refused() -> None:
    with pytest.raises(ValueError, match=r"there is no hook scaler\.sclae"):
        ablation.hooks("scaler.sclae,backward")


def test_what_was_found_is_watched_again_without_each_hook(tmp_path: Path) -> None:
    recipe = Recipe.parse("nonfinite-loss/mean/late/script/mlp/sgd/fp32/run/5ms/4")
    whole, *parts = runner.run_all([Case(recipe, "fault")], tmp_path, 1, measure=Measure(ablate=True))
    assert whole.noticed
    assert "" == whole.without
    assert parts
    assert {score.without for score in parts} <= set(HOOKS)
    assert [score.program for score in parts] == [str(recipe)] * len(parts)
    assert all(score.unchanged for score in parts)

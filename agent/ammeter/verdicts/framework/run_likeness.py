"""Lists the differences in the settings of two runs, and the comparisons that each forbids.

The functions are pure. docs/decisions/0032-only-like-runs-are-compared.md contains the reasons.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from ammeter.wire.frames import Schema, Tensor

if TYPE_CHECKING:
    from ammeter.verdicts.framework.run_history import RunHistory

QUESTIONS = ("speed", "memory", "cost", "validation")
"""The quantities in which runs are compared."""

EVERYTHING = frozenset(QUESTIONS)
RESOURCES = frozenset(("speed", "memory", "cost"))
TIME = frozenset(("speed", "cost"))
QUALITY = frozenset(("validation",))
NAMED_ONLY: frozenset[str] = frozenset()

_PRECISION = (
    "precision dtype torch_dtype amp amp_dtype use_amp no_amp enable_amp native_amp amp_level opt_level"
    " fp16_opt_level amp_backend autocast no_autocast autocast_dtype mixed_precision fp16 bf16 fp32 tf32 fp8"
    " use_fp16 use_bf16 use_half half half_precision float16 bfloat16 float32 model_dtype weights_dtype"
    " param_dtype compute_dtype allow_tf32 matmul_precision float32_matmul_precision scaler grad_scaler"
    " use_scaler init_scale initial_scale loss_scale loss_scaling dynamic_loss_scale growth_interval"
    " growth_factor backoff_factor"
)
PRECISION = frozenset(_PRECISION.split())
"""Names of settings that select the precision of a run. They may differ, because precision is the subject of the
comparison."""

_BESIDE = (
    "name run_name job_name exp_name experiment experiment_name id project group notes tags baseline output out outdir"
    " output_dir output_path out_dir save save_dir save_path log_dir logdir log_file log_path work_dir workdir run_dir"
    " ckpt ckpt_dir ckpt_path checkpoint checkpoint_dir checkpoint_path resume resume_from resume_from_checkpoint"
    " steps max_steps epochs max_epochs num_epochs iterations iters max_iters verbose quiet local_rank"
)
BESIDE = frozenset(_BESIDE.split())
BESIDE_TOO = ("_every", "_freq")
"""Names and endings of settings for labels, output paths, logging and run length. They do not change any step."""

SEEDS = frozenset(("seed", "random_seed", "manual_seed"))

_LEARNING = (
    "lr lrs learning_rate base_lr initial_lr max_lr min_lr final_lr lr_decay lr_schedule lr_scheduler scheduler warmup"
    " warmup_steps warmup_ratio warmup_iters betas beta1 beta2 eps adam_eps adam_epsilon weight_decay wd alpha rho"
    " lambd dampening momentum_decay step_sizes etas label_smoothing"
)
LEARNING = frozenset(_LEARNING.split())
"""Optimizer settings that affect the result of training, but not step time or memory."""

ENVIRONMENT: Mapping[str, frozenset[str]] = {
    "optimizer": EVERYTHING,
    "trainable_parameters": EVERYTHING,
    "devices": RESOURCES,
    "device": RESOURCES,
    "cpu": RESOURCES,
    "threads": TIME,
    "torch": RESOURCES,
    "cuda": RESOURCES,
    "cudnn": RESOURCES,
    "driver": NAMED_ONLY,
    "python": NAMED_ONLY,
    "git_commit": NAMED_ONLY,
}
"""Environment facts that are compared if both runs have them. Each has the questions that a difference forbids."""

OPTIMIZER = "optimizer."
"""Prefix of the optimizer's settings in a run's environment."""

SAME_BATCH = 0.01
"""Share by which samples or backward passes per step may differ: an incomplete last batch does not change the
median."""

SAME_TOKENS = 0.1
"""The same for tokens. Their number varies between batches if texts are not cut to one length."""

ALIASES = {"samples": frozenset(("batch", "batch_size")), "micro_batches": frozenset(("accumulation", "grad_accum"))}
"""Alternative names under which a measured quantity can be ignored."""

DATA_TAGS = ("dataset", "data")

_OWN = re.compile(r"group\d+\.\d+$")
"""Names of optimizer tensors that are not model parameters. An example is float32 masters of half-precision weights."""

MODEL = ("model", "model.names")
"""Differences of the parameters. Ammeter writes their text itself, so it is not truncated."""

MAX_SHOWN_CHARS = 40
"""Characters of a value that are displayed: about eight values share one sentence."""


@dataclass(frozen=True)
class Difference:
    """A setting that differs between two runs; None for a run that lacks the setting.

    Attributes:
        forbids: The QUESTIONS that cannot be compared because of it; empty for a difference that is only listed.
    """

    key: str
    run: Any
    baseline: Any
    forbids: tuple[str, ...] = QUESTIONS

    @property
    def said(self) -> str:
        """Returns 'batch is 4 against 8'."""
        if self.key in MODEL:
            return f"{self.key} is {self.run} against {self.baseline}"
        return f"{self.key} is {shown(self.run)} against {shown(self.baseline)}"

    def as_json(self) -> dict[str, Any]:
        return {"key": self.key, "run": self.run, "baseline": self.baseline, "forbids": list(self.forbids)}


@dataclass(frozen=True)
class Model:
    """The parameters of a model, from the run's first columns.

    For a sharded model these are the parameters of this rank.
    """

    tensors: tuple[Tensor, ...]

    @property
    def parameters(self) -> int:
        return sum(tensor.numel for tensor in self.tensors)

    @property
    def dtypes(self) -> frozenset[str]:
        return frozenset(tensor.dtype for tensor in self.tensors)

    @property
    def precision(self) -> str:
        """`float16` or `bfloat16` if most elements have such a dtype, else the empty string."""
        elements: Counter[str] = Counter()
        for tensor in self.tensors:
            elements[tensor.dtype] += tensor.numel
        floating = {dtype: count for dtype, count in elements.items() if dtype in ("float16", "bfloat16")}
        return max(floating, key=lambda dtype: floating[dtype]) if sum(floating.values()) * 2 > self.parameters else ""

    @property
    def said(self) -> str:
        """Returns '124,439,808 parameters in 148 tensors'."""
        return f"{self.parameters:,} parameters in {len(self.tensors):,} tensors"

    def named(self) -> list[tuple[str, tuple[int, ...]]]:
        """Returns the sorted (name, shape) pairs without a prefix that all names share.

        Wrappers of a model add such a prefix.
        """
        prefix = _common_prefix([tensor.name for tensor in self.tensors])
        return sorted((tensor.name[len(prefix) :], tuple(tensor.shape)) for tensor in self.tensors)


def model_of(schema: Schema) -> Model | None:
    """Returns the model of a schema's tensors; None if the schema has none."""
    own = tuple(tensor for tensor in schema.tensors if not _OWN.match(tensor.name))
    tensors = own or schema.tensors
    return Model(tensors) if tensors else None


def differences(run: RunHistory, baseline: RunHistory, ignored: frozenset[str]) -> list[Difference]:
    """Returns the unintended differences, those that forbid most first, then by name."""
    found = [*_of_models(run, baseline), *_of_batches(run, baseline), *_of_environments(run, baseline)]
    found += _of_configs(run, baseline)
    unique = {each.key: each for each in found if not _names(each.key) & ignored}
    return sorted(unique.values(), key=lambda each: (-len(each.forbids), each.key))


def settings_of(course: RunHistory) -> Iterator[tuple[str, Any]]:
    """Yields the config's settings; nested ones have names such as 'model.width'."""
    yield from _flat(course.config)


def last_part(key: str) -> str:
    return key.rpartition(".")[2].lower().replace("-", "_")


def ignored_by(tags: Mapping[str, Any]) -> frozenset[str]:
    """Returns the settings that a run's tag `baseline_ignore` exempts, separated by commas."""
    return frozenset(each.strip() for each in str(tags.get("baseline_ignore", "")).split(",") if each.strip())


def shown(value: Any) -> str:
    """Formats a setting's value for a person."""
    text = "not set" if value is None else str(value)
    return " ".join(text.split())[:MAX_SHOWN_CHARS] or "empty"


def _names(key: str) -> frozenset[str]:
    return frozenset((key, last_part(key))) | ALIASES.get(key, frozenset())


def _of_models(run: RunHistory, baseline: RunHistory) -> Iterator[Difference]:
    mine, theirs = run.model, baseline.model
    if mine is None or theirs is None:
        return
    own, other = mine.named(), theirs.named()
    if own == other:
        return
    if sorted(shape for _, shape in own) != sorted(shape for _, shape in other):
        if mine.said != theirs.said:
            yield Difference("model", mine.said, theirs.said)
        else:
            here, there = _first_apart(own, other)
            yield Difference("model", f"{mine.said}, with {here}", f"{theirs.said}, with {there}")
    else:
        yield Difference("model.names", *_first_apart(own, other))


def _first_apart(mine: Sequence[tuple[str, Any]], theirs: Sequence[tuple[str, Any]]) -> tuple[str, str]:
    """Returns the first tensor of each run that the other run lacks."""
    both = set(mine) & set(theirs)
    first = [
        next((f"{name} {shape}" for name, shape in each if (name, shape) not in both), "") for each in (mine, theirs)
    ]
    return first[0], first[1]


def _of_batches(run: RunHistory, baseline: RunHistory) -> Iterator[Difference]:
    for name, same, forbids in (
        ("samples", SAME_BATCH, EVERYTHING),
        ("tokens", SAME_TOKENS, EVERYTHING),
        ("micro_batches", SAME_BATCH, RESOURCES),
    ):
        mine, theirs = usual(run, name), usual(baseline, name)
        if mine > 0 and theirs > 0 and abs(mine / theirs - 1) > same:
            yield Difference(name, f"{mine:g} a step", f"{theirs:g} a step", _ordered(forbids))
    if run.world_size != baseline.world_size:
        yield Difference("world_size", run.world_size, baseline.world_size)


def _of_environments(run: RunHistory, baseline: RunHistory) -> Iterator[Difference]:
    mine, theirs = run.environment, baseline.environment
    same_optimizer = mine.get("optimizer") == theirs.get("optimizer")
    for key in sorted({*mine} & {*theirs}):
        if mine[key] == theirs[key]:
            continue
        if key in ENVIRONMENT:
            yield Difference(key, mine[key], theirs[key], _ordered(ENVIRONMENT[key]))
        elif key.startswith(OPTIMIZER) and same_optimizer:
            yield Difference(key, mine[key], theirs[key], _ordered(_of_setting(key)))
    for key in sorted({*mine} ^ {*theirs}) if same_optimizer else ():
        if key.startswith(OPTIMIZER) and "optimizer" in mine:
            yield Difference(key, mine.get(key), theirs.get(key), _ordered(_of_setting(key)))


def _of_configs(run: RunHistory, baseline: RunHistory) -> Iterator[Difference]:
    mine, theirs = dict(settings_of(run)), dict(settings_of(baseline))
    for key in sorted({*mine, *theirs}):
        last = last_part(key)
        skipped = last in PRECISION | BESIDE | SEEDS or last.endswith(BESIDE_TOO)
        if mine.get(key) != theirs.get(key) and not skipped:
            yield Difference(key, mine.get(key), theirs.get(key), _ordered(_of_setting(key)))
    for key in DATA_TAGS:
        if key in run.tags and key in baseline.tags and run.tags[key] != baseline.tags[key]:
            yield Difference(key, run.tags[key], baseline.tags[key])


def _of_setting(key: str) -> frozenset[str]:
    return QUALITY if last_part(key) in LEARNING else EVERYTHING


def _ordered(forbids: frozenset[str]) -> tuple[str, ...]:
    return tuple(each for each in QUESTIONS if each in forbids)


def usual(course: RunHistory, name: str) -> float:
    """Returns the median of a column; 0 if it was never measured."""
    values = course.curve(name).values
    return float(np.median(values)) if len(values) else 0.0


def _flat(config: Mapping[str, Any], within: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in config.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{within}{key}.")
        else:
            yield f"{within}{key}", value


def _common_prefix(names: Sequence[str]) -> str:
    """Returns the prefix of dotted parts that all names share, such as 'model.'.

    The last part of a name never belongs to it.
    """
    if not names:
        return ""
    first, last = min(names).split("."), max(names).split(".")
    parts = []
    for mine, theirs in zip(first[:-1], last[:-1], strict=False):
        if mine != theirs:
            break
        parts.append(mine)
    return "".join(f"{part}." for part in parts)

"""Lists the differences in the settings of two runs, and the comparisons that each forbids.

The functions are pure. docs/decisions/0032-only-like-runs-are-compared.md contains the reasons.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from ammeter.verdicts.framework.model_shape import first_unshared

if TYPE_CHECKING:
    from ammeter.verdicts.framework.run_history import RunHistory

QUESTIONS = ("speed", "memory", "cost", "validation")
"""The quantities in which runs are compared."""

EVERYTHING = frozenset(QUESTIONS)
RESOURCES = frozenset(("speed", "memory", "cost"))
TIME = frozenset(("speed", "cost"))
QUALITY = frozenset(("validation",))
NO_QUESTION: frozenset[str] = frozenset()

_PRECISION = (
    "precision dtype torch_dtype amp amp_dtype use_amp no_amp enable_amp native_amp amp_level opt_level"
    " fp16_opt_level amp_backend autocast no_autocast autocast_dtype mixed_precision fp16 bf16 fp32 tf32 fp8"
    " use_fp16 use_bf16 use_half half half_precision float16 bfloat16 float32 model_dtype weights_dtype"
    " param_dtype compute_dtype allow_tf32 matmul_precision float32_matmul_precision scaler grad_scaler"
    " use_scaler init_scale initial_scale loss_scale loss_scaling dynamic_loss_scale growth_interval"
    " growth_factor backoff_factor fp16_full_eval bf16_full_eval half_precision_backend"
)
PRECISION = frozenset(_PRECISION.split())
"""Names of settings that select the precision of a run. They may differ, because precision is the subject of the
comparison."""

_NEUTRAL = (
    "name run_name job_name exp_name experiment experiment_name id project group notes tags baseline output out outdir"
    " output_dir output_path out_dir save save_dir save_path log_dir logdir log_file log_path work_dir workdir run_dir"
    " ckpt ckpt_dir ckpt_path checkpoint checkpoint_dir checkpoint_path resume resume_from resume_from_checkpoint"
    " steps max_steps epochs max_epochs num_epochs num_train_epochs iterations iters max_iters resumed_at_step verbose"
    " quiet local_rank logging_dir"
)
NEUTRAL = frozenset(_NEUTRAL.split())
NEUTRAL_ENDINGS = ("_every", "_freq")
"""Names and endings of settings for labels, output paths, logging and run length. They do not change any step."""

FRAMEWORK = "framework."
"""Prefix of the settings that a training framework has handed over. Journals without an integration, and older ones,
do not have them: only settings that both runs have are compared."""

FRAMEWORK_VERSION = FRAMEWORK + "version"

FRAMEWORK_NEUTRAL = ("log_", "logging_", "save_", "eval_", "hub_", "push_to_", "report_to", "do_", "disable_", "load_")
"""Beginnings of a framework's settings for logging, evaluation and checkpoints. They do not change any step."""

SEEDS = frozenset(("seed", "random_seed", "manual_seed", "data_seed"))

_LEARNING = (
    "lr lrs learning_rate base_lr initial_lr max_lr min_lr final_lr lr_decay lr_schedule lr_scheduler scheduler warmup"
    " warmup_steps warmup_ratio warmup_iters betas beta1 beta2 eps adam_eps adam_epsilon adam_beta1 adam_beta2"
    " lr_scheduler_type label_smoothing_factor weight_decay wd alpha rho"
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
    "driver": NO_QUESTION,
    "python": NO_QUESTION,
    "git_commit": NO_QUESTION,
}
"""Environment facts that are compared if both runs have them. Each has the questions that a difference forbids."""

OPTIMIZER_PREFIX = "optimizer."
"""Prefix of the optimizer's settings in a run's environment."""

MAX_BATCH_DIFFERENCE = 0.01
"""Share by which samples or backward passes per step may differ: an incomplete last batch does not change the
median."""

MAX_TOKEN_DIFFERENCE = 0.1
"""The same for tokens. Their number varies between batches if texts are not cut to one length."""

ALIASES = {"samples": frozenset(("batch", "batch_size")), "micro_batches": frozenset(("accumulation", "grad_accum"))}
"""Alternative names under which a measured quantity can be ignored."""

DATA_TAGS = ("dataset", "data")

MODEL_KEYS = ("model", "model.names")
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
    def text(self) -> str:
        """Returns 'batch is 4 against 8'."""
        if self.key in MODEL_KEYS:
            return f"{self.key} is {self.run} against {self.baseline}"
        return f"{self.key} is {shown(self.run)} against {shown(self.baseline)}"

    def as_json(self) -> dict[str, Any]:
        return {"key": self.key, "run": self.run, "baseline": self.baseline, "forbids": list(self.forbids)}


def differences(run: RunHistory, baseline: RunHistory, ignored: frozenset[str]) -> list[Difference]:
    """Returns the unintended differences, those that forbid most first, then by name."""
    every = [*_of_models(run, baseline), *_of_batches(run, baseline), *_of_environments(run, baseline)]
    every += _of_configs(run, baseline)
    unique = {difference.key: difference for difference in every if not _names(difference.key) & ignored}
    return sorted(unique.values(), key=lambda difference: (-len(difference.forbids), difference.key))


def settings_of(history: RunHistory) -> Iterator[tuple[str, Any]]:
    """Yields the config's settings; nested ones have names such as 'model.width'."""
    yield from _flat(history.config)


def last_part(key: str) -> str:
    return key.rpartition(".")[2].lower().replace("-", "_")


def ignored_by(tags: Mapping[str, Any]) -> frozenset[str]:
    """Returns the settings that a run's tag `baseline_ignore` exempts, separated by commas."""
    return frozenset(name.strip() for name in str(tags.get("baseline_ignore", "")).split(",") if name.strip())


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
        if mine.text != theirs.text:
            yield Difference("model", mine.text, theirs.text)
        else:
            own_tensor, other_tensor = first_unshared(own, other)
            yield Difference("model", f"{mine.text}, with {own_tensor}", f"{theirs.text}, with {other_tensor}")
    else:
        yield Difference("model.names", *first_unshared(own, other))


def _of_batches(run: RunHistory, baseline: RunHistory) -> Iterator[Difference]:
    for name, max_difference, forbids in (
        ("samples", MAX_BATCH_DIFFERENCE, EVERYTHING),
        ("tokens", MAX_TOKEN_DIFFERENCE, EVERYTHING),
        ("micro_batches", MAX_BATCH_DIFFERENCE, RESOURCES),
    ):
        mine, theirs = median_of(run, name), median_of(baseline, name)
        if mine > 0 and theirs > 0 and abs(mine / theirs - 1) > max_difference:
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
        elif key.startswith(OPTIMIZER_PREFIX) and same_optimizer:
            yield Difference(key, mine[key], theirs[key], _ordered(_of_setting(key)))
    for key in sorted({*mine} ^ {*theirs}) if same_optimizer else ():
        if key.startswith(OPTIMIZER_PREFIX) and "optimizer" in mine:
            yield Difference(key, mine.get(key), theirs.get(key), _ordered(_of_setting(key)))


def _of_configs(run: RunHistory, baseline: RunHistory) -> Iterator[Difference]:
    mine, theirs = dict(settings_of(run)), dict(settings_of(baseline))
    for key in sorted({*mine, *theirs}):
        if mine.get(key) != theirs.get(key) and not _may_differ(key, in_both=key in mine and key in theirs):
            yield Difference(key, mine.get(key), theirs.get(key), _ordered(_of_setting(key)))
    for key in DATA_TAGS:
        if key in run.tags and key in baseline.tags and run.tags[key] != baseline.tags[key]:
            yield Difference(key, run.tags[key], baseline.tags[key])


def _may_differ(key: str, *, in_both: bool) -> bool:
    """Returns whether a setting is the subject of the comparison, or does not change any step."""
    last = last_part(key)
    if key.startswith(FRAMEWORK) and (not in_both or last.startswith(FRAMEWORK_NEUTRAL)):
        return True
    return last in PRECISION | NEUTRAL | SEEDS or last.endswith(NEUTRAL_ENDINGS)


def _of_setting(key: str) -> frozenset[str]:
    if key == FRAMEWORK_VERSION:
        return NO_QUESTION
    return QUALITY if last_part(key) in LEARNING else EVERYTHING


def _ordered(forbids: frozenset[str]) -> tuple[str, ...]:
    return tuple(question for question in QUESTIONS if question in forbids)


def median_of(history: RunHistory, name: str) -> float:
    """Returns the median of a column; 0 if it was never measured."""
    values = history.curve(name).values
    return float(np.median(values)) if len(values) else 0.0


def _flat(config: Mapping[str, Any], within: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in config.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{within}{key}.")
        else:
            yield f"{within}{key}", value

"""Styles of programs that use a training framework: Accelerate, Fabric, Lightning and the Trainer of transformers.

The frameworks are not dependencies: without them such a program is discarded, because its twin fails. Loops that belong
to the framework have only the slots that a user of it writes. Lightning and Fabric take a GradScaler on the CPU; the
other two have float16 on GPUs alone.
"""

from __future__ import annotations

from bench.wild.pieces.style import Style

_MODEL = frozenset({"cast", "make_optimizer", "after_build", "data", "criterion", "mid", "mid_out"})
_STEP = _MODEL | {"forward", "after_loss", "reduce", "after_step", "save"}
_OWN_LOOP = _STEP | {"reset", "backward", "step", "make_schedule", "schedule"}

_ACCELERATE = """
from accelerate import Accelerator


def $main():
    $accel = Accelerator(cpu=True, mixed_precision="$mixed")
    @build
    $model, $opt = $accel.prepare($model, $opt)
    #@attach
    for $step in range($steps):
        @iteration
    @end


if __name__ == "__main__":
    $main()
"""

_FABRIC = """
from lightning.fabric import Fabric
from lightning.fabric.plugins.precision import MixedPrecision, Precision


def $main():
    @build
    $fabric = Fabric(accelerator="cpu", devices=1, plugins=$plugin)
    $model, $opt = $fabric.setup($model, $opt)
    #@attach
    for $step in range($steps):
        @iteration
    @end


if __name__ == "__main__":
    $main()
"""

_LIGHTNING = """
import types

import lightning
from lightning.pytorch.plugins.precision import MixedPrecision, Precision

$state = types.SimpleNamespace()
@build


class $Lit(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.network = $model

    def training_step(self, $item, $step):
        @fetch
        @forward
        @after_loss
        return $loss

    def on_after_backward(self):
        #@gradients
        @reduce
        #@unscaled

    def on_train_batch_end(self, $outputs, $item, $step):
        #@stepped
        @after_step
        @evaluate
        @save
        #@step

    def configure_optimizers(self):
        return $opt


$trainer = lightning.Trainer(
    max_steps=$steps,
    accelerator="cpu",
    plugins=$plugin,
    gradient_clip_val=$clip_limit,
    logger=False,
    enable_checkpointing=False,
    enable_progress_bar=False,
    enable_model_summary=False,
)
#@attach
$trainer.fit($Lit(), torch.utils.data.DataLoader(range($steps)))
@end
"""

_TRAINER = """
import types

import transformers

$state = types.SimpleNamespace()
@build


class $LossTrainer(transformers.Trainer):
    def compute_loss(self, model, inputs, **_):
        $step = self.state.global_step
        @fetch
        @forward
        @after_loss
        return $loss

    def training_step(self, *args, **kwargs):
        $result = super().training_step(*args, **kwargs)
        #@gradients
        @reduce
        #@unscaled
        return $result


class $Listener(transformers.TrainerCallback):
    def on_optimizer_step(self, args, state, control, **_):
        pass
        #@stepped

    def on_step_end(self, args, state, control, **_):
        $step = state.global_step - 1
        @after_step
        @evaluate
        @save
        #@step


$arguments = transformers.TrainingArguments(
    os.path.dirname($path),
    max_steps=$steps,
    per_device_train_batch_size=1,
    use_cpu=True,
    bf16=$in_bf16,
    max_grad_norm=$clip_limit,
    remove_unused_columns=False,
    logging_strategy="no",
    save_strategy="no",
    report_to=[],
    disable_tqdm=True,
)
$trainer = $LossTrainer(
    model=$model,
    args=$arguments,
    train_dataset=[{"number": $number} for $number in range($steps)],
    optimizers=($opt, torch.optim.lr_scheduler.ConstantLR($opt, factor=1.0)),
    data_collator=lambda items: {"number": torch.tensor([item["number"] for item in items])},
    callbacks=[$Listener()],
)
#@attach
$trainer.train()
@end
"""

_NO_AUTOCAST = {"autocast": "contextlib.nullcontext()"}
_INSIDE = {"unscale": "", "update": "", "step": "$opt.step()"}
"""What optimizers of frameworks do inside their step()."""

FRAMEWORKS = {
    "accelerate": Style(
        _ACCELERATE,
        precisions=("bf16", "fp32"),
        slots=_OWN_LOOP | {"clip"},
        texts={
            **_INSIDE,
            "autocast": "$accel.autocast()",
            "backward": "$accel.backward($loss)",
            "clip": "$accel.clip_grad_norm_($model.parameters(), $limit)",
        },
    ),
    "fabric": Style(
        _FABRIC,
        precisions=("fp16", "bf16", "fp32"),
        slots=_OWN_LOOP | {"make_scaler"},
        texts={
            **_INSIDE,
            **_NO_AUTOCAST,
            "backward": "$fabric.backward($loss)",
            "clip": "$fabric.clip_gradients($model, $opt, max_norm=$limit)",
        },
    ),
    "lightning": Style(
        _LIGHTNING,
        prefix="$state.",
        precisions=("fp16", "bf16", "fp32"),
        slots=_STEP | {"make_scaler"},
        texts=_NO_AUTOCAST,
        runs_steps=True,
        held_out=True,
    ),
    "trainer": Style(
        _TRAINER,
        prefix="$state.",
        precisions=("bf16", "fp32"),
        slots=_STEP,
        texts=_NO_AUTOCAST,
        runs_steps=True,
    ),
}

"""Threads about the loss scale: its value, its growth, its state."""

from __future__ import annotations

from bench.cases.case import Case

CASES = (
    Case(
        "pytorch/pytorch#99640",
        "loss_scale/pytorch_99640.py",
        "the scale falls below 1 and on towards 0, because some gradient is always NaN",
        ("nonfinite-gradient", "scale-collapse", "scale-underflowed"),
        (r"NaN", r"scale", r"sqrt|root|distance"),
    ),
    Case(
        "pytorch/pytorch#152279",
        "loss_scale/pytorch_152279.py",
        "a loss of every 16th step overflows each time, and scaler.step() does not say so",
        ("overflow-storm",),
        (r"skipp", r"growth_interval"),
    ),
    Case(
        "pytorch/pytorch#44511",
        "loss_scale/pytorch_44511.py",
        "the learning rate schedule moves on while the scaler skips steps",
        ("scheduler-ahead",),
        (r"skipp", r"scale", r"scheduler"),
        limitation="a scale of 2^24 stands for a large loss: there are 16 skips instead of one or two",
    ),
    Case(
        "huggingface/accelerate#4242",
        "loss_scale/accelerate_4242.py",
        "with a fused AdamW a skipped step counts as done, and the schedule moves on",
        ("scheduler-ahead",),
        (r"skipp", r"scale", r"scheduler"),
        limitation="ten lines stand for the library; a first scale of 2^32 stands for repeated overflows",
    ),
    Case(
        "intel/intel-extension-for-pytorch#814",
        "loss_scale/intel_extension_for_pytorch_814.py",
        "GradScaler without a device disables itself on a device other than CUDA",
        ("scaler-disabled",),
        (r"device",),
        limitation="CPU instead of XPU; the loss does not become NaN",
    ),
    Case(
        "engichang1467/Open-Rig3R#35",
        "loss_scale/open_rig3r_35.py",
        "float16 autocast without GradScaler: gradients underflow silently",
        ("no-loss-scaling",),
        (r"bfloat16", r"GradScaler"),
    ),
    Case(
        "decoderesearch/SAELens#723",
        "loss_scale/saelens_723.py",
        "a GradScaler around bfloat16 autocast has nothing to do",
        ("pointless-scaler",),
        (r"bfloat16", r"remove|without|drop|enabled=False"),
    ),
    Case(
        "wandb/wandb#9092",
        "loss_scale/wandb_9092.py",
        "GradScaler is reset by accident",
        ("scaler-rebuilt",),
        (r"once|one GradScaler|before the loop|keep",),
        limitation="the chart of scaled gradients, the other half of the thread, is no fault of the program",
    ),
    Case(
        "facebookresearch/fairseq#282",
        "loss_scale/fairseq_282.py",
        "minimum loss scale reached with a large learning rate (the trainer's own scaler)",
        ("diverged", "scale-collapse"),
        (r"learning rate",),
        limitation="plain SGD instead of fairseq's trainer",
    ),
    Case(
        "openai/guided-diffusion#44",
        "loss_scale/guided_diffusion_44.py",
        "only the first gradient is divided by the trainer's own loss scale",
        ("gradients-not-unscaled",),
        (r"divide|unscale",),
    ),
    Case(
        "deepspeedai/DeepSpeedExamples#419",
        "loss_scale/deepspeedexamples_419.py",
        "loss scale already at minimum, cannot decrease scale anymore (own scaler)",
        ("activation-overflow",),
        (r"bfloat16|bf16", r"65504|overflow"),
        limitation="which part overflowed is not known from the thread; here it is the reward model",
    ),
)

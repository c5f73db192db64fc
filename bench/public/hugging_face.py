"""Public programs that train with the libraries of Hugging Face."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from bench.common.paths import ROOT
from bench.public.data import pictures
from bench.public.program import NAN_WEIGHT, NO_RESET, SITE, Program


def _diffusion(precision: str, amp: str) -> Program:
    """The example of a README, which has no options."""
    sizes = {
        "model = Unet(": "import torch\ntorch.manual_seed(0)\nmodel = Unet(",
        "dim = 64,\n    dim_mults = (1, 2, 4, 8)": "dim = 16,\n    dim_mults = (1, 2)",
        "image_size = 128": "image_size = 16",
        "timesteps = 1000,": "timesteps = 20,",
        "sampling_timesteps = 250": "sampling_timesteps = 5",
        "path/to/your/images": "images",
        "train_batch_size = 32": "save_and_sample_every = 30,\n    num_samples = 4,\n    train_batch_size = 8",
        "train_num_steps = 700000": "train_num_steps = 60",
        "calculate_fid = True": "calculate_fid = False",
        "amp = True": amp,
    }
    return Program(
        f"denoising-diffusion-pytorch, {precision}",
        "lucidrains/denoising-diffusion-pytorch",
        "faed4db28e724735323fa91c70aa9b28a6e1cbac",
        "README.md#trainer = Trainer(",
        "diffusion, Accelerate",
        paths=("README.md", "denoising_diffusion_pytorch"),
        sizes=tuple(("documented.py", before, smaller) for before, smaller in sizes.items()),
        data=pictures("images", "{part}/class{label}/{number}.png", count=120),
        precisions={precision: ()},
        modules=("torchvision", "einops", "ema_pytorch", "pytorch_fid"),
    )


def _language_model(folder: Path) -> None:
    """Writes a small model and a dataset; in a process in which torchvision can be imported, as in the program."""
    place = folder / "trl" / "scripts"
    command = [sys.executable, "-m", "bench.public.small_language_model", str(place)]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join((str(SITE), str(ROOT)))}
    subprocess.run(command, env=environment, capture_output=True, check=True)


PROGRAMS = (
    Program(
        "TRL sft.py",
        "huggingface/trl",
        "f2cd57710ae345ea6428ae95363267fcf38a3dc8",
        "trl/scripts/sft.py",
        "Trainer of Transformers, fine-tuning",
        paths=("trl",),
        options=(
            *("--model_name_or_path", "model", "--dataset_name", "data", "--output_dir", "output", "--use_cpu", "true"),
            *("--per_device_train_batch_size", "4", "--num_train_epochs", "1", "--max_length", "32"),
            *("--logging_steps", "10", "--report_to", "none", "--gradient_checkpointing", "false"),
            *("--dataloader_num_workers", "0", "--gradient_accumulation_steps", "1"),
        ),
        data=_language_model,
        precisions={
            "fp32": ("--bf16=false", "HF_HUB_OFFLINE=1", "HF_HOME=home"),
            "bf16": ("--bf16=true", "HF_HUB_OFFLINE=1", "HF_HOME=home"),
        },
        varying=r"'(train_\w*(runtime|second)|step_time)': '?[-\d.e]+'?|\d+%\|.*|[\d.]+ ?(it/s|s/it|examples/s)",
        faults=(NAN_WEIGHT, NO_RESET),
        modules=("trl", "datasets", "transformers"),
    ),
    Program(
        "Accelerate cv_example.py",
        "huggingface/accelerate",
        "16cb6eb80dd9aa8b4df1a63ef57863e455d53b83",
        "examples/cv_example.py",
        "Accelerate, frozen layers",
        paths=("examples/cv_example.py",),
        options=("--data_dir", "pets", "--cpu"),
        sizes=(
            ("examples/cv_example.py", '"resnet50d", pretrained=True', '"resnet10t", pretrained=False'),
            ("examples/cv_example.py", '"batch_size": 64, "image_size": 224', '"batch_size": 4, "image_size": 32'),
            ("examples/cv_example.py", "in os.listdir(args.data_dir)", "in sorted(os.listdir(args.data_dir))"),
            ("examples/cv_example.py", "batch_size=batch_size, num_workers=4", "batch_size=batch_size, num_workers=0"),
        ),
        data=pictures("examples/pets", "class{label}_{number}.jpg", count=160),
        precisions={"fp32": (), "bf16": ("--mixed_precision=bf16",)},
        faults=(NAN_WEIGHT, NO_RESET),
        modules=("timm", "torchvision"),
    ),
    _diffusion("fp32", "amp = False"),
    _diffusion("bf16", "amp = True, mixed_precision_type = 'bf16'"),
)

"""The public programs, and how each is made small enough for two CPU cores."""

from __future__ import annotations

from bench.public.data import images_at, mnist_at, text_at
from bench.public.program import NAN_WEIGHT, NO_RESET, Program

_EXAMPLES = ("pytorch/examples", "77f55b912142e11fcfdf5b530231fb9c52f181e8")
_WORDS = tuple(f"word_language_model/{name}.py" for name in ("main", "model", "data"))
_LIGHTNING = ("Lightning-AI/pytorch-lightning", "7f0c3436cd3f6ad3753125672024fc415cbcb414")
_CLEANRL = ("vwxyzjn/cleanrl", "fe8d8a03c41a7ef5b523e2e354bd01c363e786bb")


def _diffusion(precision: str, amp: str) -> Program:
    """The example of a README, which has no options."""
    sizes = {
        "dim = 64,\n    dim_mults = (1, 2, 4, 8)": "dim = 16,\n    dim_mults = (1, 2)",
        "image_size = 128": "image_size = 16",
        "timesteps = 1000,": "timesteps = 20,",
        "sampling_timesteps = 250": "sampling_timesteps = 5",
        "path/to/your/images": "images",
        "train_batch_size = 32": "save_and_sample_every = 30,\n    num_samples = 4,\n    train_batch_size = 4",
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
        sizes=tuple(("documented.py", text, smaller) for text, smaller in sizes.items()),
        data=images_at("images", count=120),
        precisions={precision: ()},
        modules=("torchvision", "einops", "ema_pytorch", "pytorch_fid"),
    )


PROGRAMS = (
    Program(
        "nanoGPT",
        "karpathy/nanoGPT",
        "3adf61e154c3fe3fca428ad6bc3818b27a3b8291",
        "train.py",
        "language model, gradient accumulation",
        options=(
            *("--dataset=shakespeare_char", "--device=cpu", "--compile=False", "--eval_iters=2", "--log_interval=10"),
            *("--block_size=32", "--batch_size=4", "--n_layer=2", "--n_head=2", "--n_embd=64", "--dropout=0.0"),
            *("--max_iters=120", "--lr_decay_iters=120", "--warmup_iters=10", "--gradient_accumulation_steps=2"),
            *("--eval_interval=60", "--dtype=float32"),
        ),
        data=text_at("data/shakespeare_char/input.txt"),
        prepare=("data/shakespeare_char/prepare.py",),
        varying=r"time [\d.]+ms, mfu [-\d.]+%",
        faults=(NAN_WEIGHT, NO_RESET),
    ),
    Program(
        "minGPT",
        "karpathy/minGPT",
        "37baab71b9abea1b76ab957409a1cc2fbfba8a26",
        "projects/chargpt/chargpt.py",
        "language model",
        options=(
            *("--model.model_type=gpt-nano", "--trainer.max_iters=120", "--trainer.batch_size=4"),
            *("--data.block_size=32", "--trainer.num_workers=0"),
        ),
        data=text_at("projects/chargpt/input.txt"),
        varying=r"iter_dt [\d.]+ms",
        faults=(NAN_WEIGHT, NO_RESET),
    ),
    Program(
        "word_language_model",
        *_EXAMPLES,
        "word_language_model/main.py",
        "LSTM that updates its weights itself",
        paths=_WORDS,
        options=(
            *("--data", "small", "--epochs", "1", "--emsize", "48", "--nhid", "48", "--log-interval", "20"),
            *("--batch_size", "8", "--bptt", "10"),
        ),
        data=text_at(*(f"word_language_model/small/{part}.txt" for part in ("train", "valid", "test"))),
        optimizers=0,
        varying=r"ms/batch *[\d.]+|time: *[\d.]+s",
        faults=(),
    ),
    Program(
        "word_language_model, AdamW",
        *_EXAMPLES,
        "word_language_model/main.py",
        "transformer",
        paths=_WORDS,
        options=(
            *("--data", "small", "--epochs", "1", "--emsize", "48", "--nhid", "48", "--log-interval", "20"),
            *("--batch_size", "8", "--bptt", "10", "--model", "Transformer", "--use-optimizer", "--lr", "0.001"),
        ),
        data=text_at(*(f"word_language_model/small/{part}.txt" for part in ("train", "valid", "test"))),
        varying=r"ms/batch *[\d.]+|time: *[\d.]+s",
        faults=(NAN_WEIGHT,),
    ),
    Program(
        "dcgan",
        *_EXAMPLES,
        "dcgan/main.py",
        "GAN, two optimizers",
        paths=("dcgan",),
        options=(
            *("--dataset", "fake", "--batchSize", "8", "--ngf", "8", "--ndf", "8", "--niter", "1"),
            *("--manualSeed", "1", "--workers", "0"),
        ),
        optimizers=2,
        modules=("torchvision",),
    ),
    Program(
        "time_sequence_prediction",
        *_EXAMPLES,
        "time_sequence_prediction/train.py",
        "L-BFGS, float64",
        paths=("time_sequence_prediction",),
        options=("--steps", "12"),
        sizes=(
            ("time_sequence_prediction/generate_sine_wave.py", "L = 1000", "L = 40"),
            ("time_sequence_prediction/generate_sine_wave.py", "N = 100", "N = 8"),
            ("time_sequence_prediction/train.py", "future = 1000", "future = 10"),
        ),
        prepare=("time_sequence_prediction/generate_sine_wave.py",),
        precisions={"fp64": ("TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD=1",)},  # it loads an array of numpy
        faults=(),
        modules=("matplotlib",),
    ),
    Program(
        "actor_critic",
        *_EXAMPLES,
        "reinforcement_learning/actor_critic.py",
        "reinforcement learning",
        paths=("reinforcement_learning",),
        sizes=(("reinforcement_learning/actor_critic.py", "in count(1)", "in range(1, 80)"),),
        modules=("gymnasium",),
    ),
    Program(
        "vae",
        *_EXAMPLES,
        "vae/main.py",
        "variational autoencoder",
        paths=("vae",),
        options=("--epochs", "1", "--batch-size", "8"),
        data=mnist_at("data"),
        modules=("torchvision",),
    ),
    Program(
        "mnist",
        *_EXAMPLES,
        "mnist/main.py",
        "classifier",
        paths=("mnist",),
        options=("--epochs", "1", "--batch-size", "8"),
        data=mnist_at("data"),
        modules=("torchvision",),
        faults=(NAN_WEIGHT, NO_RESET),
    ),
    Program(
        "timm train.py",
        "huggingface/pytorch-image-models",
        "aa4b5850c1543fa488abf260f18390eda46cf85d",
        "train.py",
        "image classifier",
        paths=("timm", "train.py"),
        options=(
            *("--data-dir", "images", "--model", "resnet10t", "--num-classes", "2", "--img-size", "32"),
            *("--epochs", "4", "-b", "4", "-vb", "4", "--workers", "1", "--device", "cpu", "--sched-on-updates"),
            *("--experiment", "run", "--log-interval", "5"),
        ),
        data=images_at("images"),
        precisions={
            "fp32": (),
            "bf16": ("--amp", "--amp-dtype=bfloat16"),
            "fp16": ("--amp", "--amp-dtype=float16"),
        },
        varying=r"Time: .*?(?=LR)|Data: .*|(?i:[\d.]+s,? *\(?[\d.]*s?\)?)|[\d.]+/s",
        modules=("torchvision",),
    ),
    Program(
        "Lightning autoencoder",
        *_LIGHTNING,
        "examples/pytorch/basics/autoencoder.py",
        "Trainer of Lightning",
        paths=("examples/pytorch/basics",),
        options=(
            *("--trainer.max_epochs=1", "--trainer.accelerator=cpu", "--trainer.limit_val_batches=4"),
            *("--trainer.limit_test_batches=4", "--trainer.limit_predict_batches=2", "--data.batch_size=8"),
            *("--trainer.enable_progress_bar=false", "--trainer.logger=false"),
        ),
        sizes=(("examples/pytorch/basics/autoencoder.py", "[55000, 5000]", "[900, 100]"),),
        data=mnist_at("examples/pytorch/basics/data", "examples/Datasets"),
        precisions={"fp32": (), "bf16": ("--trainer.precision=bf16-mixed",)},
        modules=("torchvision", "jsonargparse"),
    ),
    Program(
        "Fabric image classifier",
        *_LIGHTNING,
        "examples/fabric/image_classifier/train_fabric.py",
        "Fabric",
        paths=("examples/fabric/image_classifier",),
        options=("--epochs", "1", "--batch-size", "8"),
        data=mnist_at("Datasets", "examples/Datasets"),
        precisions={
            "fp32": ("LT_CLI_USED=1", "LT_ACCELERATOR=cpu"),
            "bf16": ("LT_CLI_USED=1", "LT_ACCELERATOR=cpu", "LT_PRECISION=bf16-mixed"),
        },
        modules=("torchvision", "torchmetrics"),
    ),
    Program(
        "cleanrl ppo",
        *_CLEANRL,
        "cleanrl/ppo.py",
        "reinforcement learning, PPO",
        paths=("cleanrl", "cleanrl_utils"),
        options=("--total-timesteps", "2048", "--num-envs", "2", "--no-cuda"),
        varying=r"SPS: \d+",
        modules=("gymnasium", "tyro"),
    ),
    Program(
        "cleanrl dqn",
        *_CLEANRL,
        "cleanrl/dqn.py",
        "reinforcement learning, replay buffer",
        paths=("cleanrl", "cleanrl_utils"),
        options=(
            *("--total-timesteps", "2500", "--learning-starts", "300", "--buffer-size", "1000", "--no-cuda"),
            *("--batch-size", "32"),
        ),
        varying=r"SPS: \d+",
        modules=("gymnasium", "tyro"),
    ),
    _diffusion("fp32", "amp = False"),
    _diffusion("bf16", "amp = True, mixed_precision_type = 'bf16'"),
    Program(
        "PyTorch-GAN gan",
        "eriklindernoren/PyTorch-GAN",
        "36d3c77e5ff20ebe0aeefd322326a134a279b93e",
        "implementations/gan/gan.py",
        "GAN",
        paths=("implementations/gan",),
        options=("--n_epochs", "1", "--batch_size", "8", "--sample_interval", "1000"),
        data=mnist_at("data/mnist"),
        optimizers=2,
        modules=("torchvision",),
    ),
)

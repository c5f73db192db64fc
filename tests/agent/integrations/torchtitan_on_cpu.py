"""Trains the debug model of torchtitan with its own Trainer, on the CPU.

torchtitan expects a GPU: torch.cpu answers what it asks of a device, and attention is computed by
scaled_dot_product_attention instead of a compiled FlexAttention, which has no backward on a CPU. All else is
torchtitan's. Run as a program, because torchtitan chooses its device and begins a process group once in a process.

Arguments: the folder of a run, or - for none; the step whose loss is NaN, or -.
"""

from __future__ import annotations

import collections
import hashlib
import json
import os
import socket
import sys
import types
from contextlib import nullcontext, suppress
from pathlib import Path
from typing import Any

import torch

STEPS = 12
TEXTS = ("the loss scale of a run falls", "a gradient is not finite", "weights change by a small step")
VOCABULARY = 300


def pretend_device() -> None:
    """Lets torchtitan take the CPU for its device."""
    cpu: Any = torch.cpu
    torch._utils._get_available_device_type = lambda: "cpu"
    cpu.current_device = lambda: 0
    cpu.get_device_name = lambda *_: "CPU"
    cpu.get_device_properties = lambda *_: types.SimpleNamespace(total_memory=2**34)
    cpu.memory_stats = lambda *_: collections.defaultdict(int)
    distributed: Any = torch.distributed
    distributed.set_timeout = lambda *_: None  # of a torch that is newer than ours
    cpu.reset_peak_memory_stats = cpu.empty_cache = lambda *_: None


def attention(q: Any, k: Any, v: Any, *, scale: float | None, enable_gqa: bool, **_: Any) -> Any:
    """Returns [batch, heads, length, size], with a causal mask."""
    out = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True, scale=scale, enable_gqa=enable_gqa)
    return out, None


def write_assets() -> None:
    """Writes a tokenizer and texts where the configuration of the debug model looks for them."""
    from tokenizers import Tokenizer, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel()
    special = ["<|begin_of_text|>", "<|end_of_text|>"]
    tokenizer.train_from_iterator(TEXTS, trainers.BpeTrainer(vocab_size=VOCABULARY, special_tokens=special))
    assets = Path("tests/assets")
    for name in ("tokenizer", "c4_test"):
        (assets / name).mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(assets / "tokenizer" / "tokenizer.json"))
    settings = {"bos_token": special[0], "eos_token": special[1], "tokenizer_class": "PreTrainedTokenizerFast"}
    (assets / "tokenizer" / "tokenizer_config.json").write_text(json.dumps(settings))
    lines = [json.dumps({"text": " ".join(TEXTS[(number + at) % 3] for at in range(40))}) for number in range(200)]
    (assets / "c4_test" / "data.json").write_text("\n".join(lines) + "\n")


def build() -> Any:
    """Returns torchtitan's Trainer of a small debug model."""
    from torchtitan.models.common.attention import FlexAttention
    from torchtitan.models.llama3.config_registry import llama3_debugmodel

    FlexAttention.compiled_flex_attn = staticmethod(attention)
    config = llama3_debugmodel()
    config.training.steps, config.training.local_batch_size, config.training.seq_len = STEPS, 2, 32
    config.metrics.log_freq = 4
    config.debug.seed = 0
    config.model_spec.model.layers = config.model_spec.model.layers[:2]
    config.activation_checkpoint = None
    config.checkpoint.enable = False
    config.validator.dataloader.dataset = "c4_test"
    config.validator.enable, config.validator.freq, config.validator.steps = True, 8, 1
    return config.build()


def main(folder: str, bad_step: str) -> None:
    """Trains, and prints a digest of the weights."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    place = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    os.environ.update({"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0", **place})
    pretend_device()
    write_assets()
    trainer = build()
    if bad_step != "-":
        spoil(trainer, int(bad_step))
    if folder != "-":
        from ammeter.integrations.torchtitan import AmmeterLogger

        trainer.metrics_processor.logger = AmmeterLogger(trainer, dir=Path(folder), name="titan")
    with suppress(RuntimeError) if bad_step != "-" else nullcontext():  # torchtitan ends at a NaN that it logs
        trainer.train()
    trainer.close()
    weights = [full(weight).numpy().tobytes() for weight in trainer.model_parts[0].state_dict().values()]
    print("weights", hashlib.sha256(b"".join(weights)).hexdigest())


def full(weight: Any) -> Any:
    """Returns the numbers of a weight that FSDP may have distributed."""
    whole = weight.full_tensor() if hasattr(weight, "full_tensor") else weight
    return whole.detach().float()


def spoil(trainer: Any, bad_step: int) -> None:
    """Makes a weight NaN before this step of the Trainer, from 1."""
    step = type(trainer).train_step

    def train_step(self: Any, *args: Any, **kwargs: Any) -> Any:
        if self.step == bad_step:
            with torch.no_grad():
                next(self.model_parts[0].parameters()).mul_(float("nan"))
        return step(self, *args, **kwargs)

    type(trainer).train_step = train_step


if __name__ == "__main__":
    main(*sys.argv[1:])

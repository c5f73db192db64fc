"""Writes a small GPT-2 with a tokenizer and a dataset of lines into a folder: `model` and `data`."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, models, pre_tokenizers, trainers
from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedTokenizerFast

from bench.public.data import text, text_lines

VOCABULARY = 300
EXAMPLES = 240
END = "<end>"


def main(folder: Path) -> None:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel()
    tokenizer.train_from_iterator([text()], trainers.BpeTrainer(vocab_size=VOCABULARY, special_tokens=[END]))
    special: dict[str, Any] = dict.fromkeys(("eos_token", "pad_token"), END)
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, **special)  # type: ignore[no-untyped-call]
    fast.save_pretrained(folder / "model")
    torch.manual_seed(0)
    sizes: dict[str, Any] = {"n_positions": 64, "n_embd": 32, "n_layer": 2, "n_head": 2, "vocab_size": len(fast)}
    dropout: dict[str, Any] = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}
    ends: dict[str, Any] = dict.fromkeys(("bos_token_id", "eos_token_id"), fast.eos_token_id)
    GPT2LMHeadModel(GPT2Config(**sizes, **dropout, **ends)).save_pretrained(folder / "model")
    (folder / "data").mkdir()
    lines = [json.dumps({"text": line}) for line in text_lines()[:EXAMPLES]]
    (folder / "data" / "train.jsonl").write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]))

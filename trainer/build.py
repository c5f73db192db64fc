"""Builds what a run consists of, as the options ask: data, model, optimizer, schedule."""

import math
from typing import TypeAlias

import torch
from torch.optim import SGD, AdamW, Optimizer
from torch.optim.lr_scheduler import LambdaLR

import data
from cnn import CNN
from cnn import Shape as CNNShape
from model import GPT, Shape
from options import Options

Network: TypeAlias = GPT | CNN

VALIDATION_BATCHES = 16
WARM_UP_STEPS = 20
FINAL_SHARE = 0.1  # of the highest learning rate


def build_data(options: Options, device: torch.device) -> tuple[data.Batches, list[data.Batch]]:
    """Batches to train on, without end, and a few to validate with."""
    batches: data.Batches
    held_back: data.Batches
    if options.arch == "cnn":
        batches = data.Images(options.batch, options.pixels, options.seed, device)
        held_back = data.Images(options.batch, options.pixels, options.seed, device, held_back=True)
    else:
        text, held_back_text = data.load()
        batches = data.Windows(text, options.batch, options.context, options.seed, device)
        held_back = data.Windows(held_back_text, options.batch, options.context, options.seed, device)
    return batches, [held_back.batch(number) for number in range(VALIDATION_BATCHES)]


def build_model(options: Options) -> Network:
    if options.arch == "cnn":
        return CNN(CNNShape(data.CLASSES, options.layers, options.width, options.dropout))
    return GPT(Shape(data.VOCABULARY, options.context, options.layers, options.heads, options.width, options.dropout))


def build_optimizer(model: Network, options: Options) -> Optimizer:
    if options.optimizer == "sgd":
        return SGD(model.parameters(), lr=options.lr, momentum=0.9)
    return AdamW(model.parameters(), lr=options.lr, betas=(0.9, 0.95), weight_decay=0.1)


def build_scheduler(optimizer: Optimizer, options: Options) -> LambdaLR:
    return LambdaLR(optimizer, lambda applied: warm_up_then_cosine(applied, options.steps))


def warm_up_then_cosine(applied: int, steps: int) -> float:
    """Share of the highest learning rate: rises linearly, then falls along half a cosine."""
    if applied < WARM_UP_STEPS:
        return (applied + 1) / WARM_UP_STEPS
    progress = min(1.0, (applied - WARM_UP_STEPS) / max(1, steps - WARM_UP_STEPS))
    return FINAL_SHARE + (1 - FINAL_SHARE) / 2 * (1 + math.cos(math.pi * progress))

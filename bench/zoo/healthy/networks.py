"""Healthy networks that resemble broken ones: rare words, dead units, frozen parts, noisy norms."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits, mse_loss
from torch.optim import SGD, AdamW, SparseAdam
from torch.utils.checkpoint import checkpoint

from bench.zoo.healthy.training import CLASSES, STEPS, WIDTH, Context, healthy, perceptron, vectors, watched_loop, words


@healthy("fp16", "bf16")
def embeddings_of_which_most_words_are_rare(context: Context) -> None:
    model = nn.Sequential(nn.EmbeddingBag(4096, 32), nn.Linear(32, 32), nn.GELU(), nn.Linear(32, CLASSES))
    watched_loop(context, model, batch=words(context.seed, 4096)).steps(range(STEPS))


@healthy("bf16", "fp32")
def sparse_gradients(context: Context) -> None:
    bag, head = nn.EmbeddingBag(2048, 16, sparse=True), nn.Linear(16, CLASSES)
    model, batch = nn.Sequential(bag, head), words(context.seed, 2048)
    optimizers = SparseAdam(list(bag.parameters()), lr=1e-2), AdamW(head.parameters(), lr=1e-2)
    run = context.watch(model, optimizers)
    for number in range(STEPS):
        sentences, targets = batch(number)
        with context.autocast():
            output = model(sentences)
        loss = nn.functional.cross_entropy(output.float(), targets)
        loss.backward()  # type: ignore[no-untyped-call]
        for optimizer in optimizers:
            optimizer.step()  # type: ignore[no-untyped-call]
            optimizer.zero_grad()
        run.log(loss=loss.detach())


@healthy()
def most_units_of_a_relu_are_dead(context: Context) -> None:
    model = perceptron(96)
    with torch.no_grad():
        model.get_parameter("0.bias")[:72] -= 50.0
    watched_loop(context, model).steps(range(STEPS))


@healthy("fp16", "fp32")
def frozen_and_unused_parameters(context: Context) -> None:
    watched_loop(context, Partly(perceptron())).steps(range(STEPS))


class Partly(nn.Module):
    """The first layer is frozen, and one layer is never used."""

    def __init__(self, layers: nn.Sequential) -> None:
        super().__init__()
        self.layers, self.unused = layers, nn.Linear(4, 4)
        self.layers[0].requires_grad_(False)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.layers(x)
        return y


@healthy("fp16", "bf16")
def low_rank_adapters(context: Context) -> None:
    model = perceptron()
    for at, layer in enumerate(model):
        if isinstance(layer, nn.Linear):
            model[at] = LowRank(layer)
    trained = [weight for weight in model.parameters() if weight.requires_grad]
    watched_loop(context, model, optimizer=AdamW(trained, lr=1e-2)).steps(range(STEPS))


class LowRank(nn.Module):
    """A frozen layer and a product of two thin matrices beside it; one matrix is zero at first."""

    def __init__(self, layer: nn.Linear, rank: int = 4) -> None:
        super().__init__()
        self.layer = layer.requires_grad_(False)
        self.down = nn.Linear(layer.in_features, rank, bias=False)
        self.up = nn.Linear(rank, layer.out_features, bias=False)
        nn.init.zeros_(self.up.weight)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.layer(x) + self.up(self.down(x))
        return y


@healthy("fp16", "fp32")
def two_optimizers_against_each_other(context: Context) -> None:
    maker = nn.Sequential(nn.Linear(4, 32), nn.LeakyReLU(0.2), nn.Linear(32, WIDTH))
    critic = nn.Sequential(nn.Linear(WIDTH, 32), nn.LeakyReLU(0.2), nn.Linear(32, 1))
    ours, theirs = (AdamW(module.parameters(), lr=1e-3, betas=(0.5, 0.999)) for module in (maker, critic))
    scaler, real = context.scaler(2.0**12), vectors(context.seed)
    run = context.watch([maker, critic], [ours, theirs], scaler)
    for number in range(STEPS):
        truth, made = real(number)[0], maker
        losses = []
        for optimizer, sign in ((theirs, 1.0), (ours, 0.0)):
            with context.autocast():
                judged = critic(made(torch.randn(16, 4)).float().detach() if sign else made(torch.randn(16, 4)).float())
                genuine = critic(truth) if sign else None
            wanted = torch.full_like(judged, 1.0 - sign).float()
            loss = binary_cross_entropy_with_logits(judged.float(), wanted)
            if genuine is not None:
                loss = loss + binary_cross_entropy_with_logits(genuine.float(), torch.ones_like(genuine).float())
            optimizer.zero_grad()
            (scaler.scale(loss) if scaler else loss).backward()  # type: ignore[no-untyped-call]
            losses.append(loss.detach())
            if scaler:
                scaler.step(optimizer)
            else:
                optimizer.step()
        if scaler:
            scaler.update()
        run.log(loss=torch.stack(losses).sum())


@healthy()
def batches_of_one_with_noisy_norms(context: Context) -> None:
    generator, batch = torch.Generator().manual_seed(context.seed), vectors(context.seed, size=1, noise=1.5)

    def uneven(number: int) -> tuple[Tensor, Tensor]:
        inputs, targets = batch(number)
        return inputs * torch.randn(1, generator=generator).mul(0.8).exp(), targets

    watched_loop(context, perceptron(), batch=uneven, optimizer=SGD).steps(range(2 * STEPS))


@healthy("bf16", "fp32")
def compiled(context: Context) -> None:
    model = perceptron(activation=nn.GELU)
    watched_loop(context, torch.compile(model, backend="aot_eager")).steps(range(STEPS))  # type: ignore[arg-type]


@healthy("fp16", "bf16")
def activations_that_are_computed_again(context: Context) -> None:
    watched_loop(context, Again(perceptron())).steps(range(STEPS))


class Again(nn.Module):
    """The first layers keep nothing for the backward pass."""

    def __init__(self, layers: nn.Sequential) -> None:
        super().__init__()
        self.first, self.last = layers[:3], layers[3:]

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.last(checkpoint(self.first, x, use_reentrant=False))
        return y


@healthy("fp16", "bf16")
def a_recurrent_network_with_a_clip_that_bites(context: Context) -> None:
    loop = watched_loop(context, Recurrent(), batch=words(context.seed, 64))
    loop.clip = 0.1
    loop.steps(range(STEPS // 2))


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words, self.cell, self.head = nn.Embedding(64, 16), nn.GRUCell(16, 24), nn.Linear(24, CLASSES)

    def forward(self, sentences: Tensor) -> Tensor:
        state = torch.zeros(len(sentences), 24)
        for at in range(sentences.shape[1]):
            state = self.cell(self.words(sentences[:, at]).float(), state.float())
        y: Tensor = self.head(state)
        return y


@healthy("fp16", "fp32")
def learns_it_all_by_heart(context: Context) -> None:
    batch = vectors(context.seed, noise=0.05)
    watched_loop(context, perceptron(128), batch=lambda _: batch(0)).steps(range(2 * STEPS))


@healthy("fp16", "bf16")
def a_teacher_in_half_precision(context: Context) -> None:
    teacher = perceptron().to(torch.bfloat16).requires_grad_(False)
    batch = vectors(context.seed)

    def taught(number: int) -> tuple[Tensor, Tensor]:
        inputs, _ = batch(number)
        return inputs, teacher(inputs.bfloat16()).float()

    loop = watched_loop(context, perceptron(), batch=taught)
    loop.loss = mse_loss
    loop.steps(range(STEPS))

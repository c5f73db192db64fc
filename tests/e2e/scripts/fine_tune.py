"""A trainer as a class, like those of libraries.

The optimizer is created late and wrapped; part of the model is frozen.
"""
# mypy: ignore-errors

import copy
import hashlib
from dataclasses import dataclass, field

import torch
from torch import nn
from torch.optim.lr_scheduler import LambdaLR


@dataclass
class Arguments:
    max_steps: int = 14
    warmup_steps: int = 4
    max_grad_norm: float = 1.0
    learning_rate: float = 5e-3
    bf16: bool = True


class Classifier(nn.Module):
    def __init__(self):
        super().__init__()
        self.backbone = nn.TransformerEncoder(nn.TransformerEncoderLayer(16, 2, 32, batch_first=True), 2)
        self.head = nn.Linear(16, 3)

    def forward(self, input_ids, labels):
        logits = self.head(self.backbone(input_ids).mean(1))
        return {"loss": nn.functional.cross_entropy(logits.float(), labels), "logits": logits}


class PreparedOptimizer(torch.optim.Optimizer):
    """Wraps another optimizer, as launch libraries do."""

    def __init__(self, optimizer):
        self.optimizer = optimizer

    param_groups = property(lambda self: self.optimizer.param_groups)
    state = property(lambda self: self.optimizer.state)
    defaults = property(lambda self: self.optimizer.defaults)

    def zero_grad(self, set_to_none=True):
        self.optimizer.zero_grad(set_to_none)

    def step(self, closure=None):
        self.optimizer.step(closure)

    def state_dict(self):
        return self.optimizer.state_dict()


@dataclass
class Trainer:
    model: nn.Module
    args: Arguments
    callbacks: list = field(default_factory=list)

    def create_optimizer_and_scheduler(self):
        trained = [parameter for parameter in self.model.parameters() if parameter.requires_grad]
        self.optimizer = PreparedOptimizer(torch.optim.AdamW(trained, lr=self.args.learning_rate))
        warm = lambda step: min(1.0, (step + 1) / self.args.warmup_steps)  # noqa: E731
        self.scheduler = LambdaLR(self.optimizer.optimizer, warm)

    def training_step(self, inputs):
        self.model.train()
        with torch.autocast("cpu", torch.bfloat16, enabled=self.args.bf16):
            loss = self.model(**inputs)["loss"]
        loss.backward()
        return loss.detach()

    def train(self):
        self.create_optimizer_and_scheduler()
        total = torch.zeros(())
        for step in range(self.args.max_steps):
            inputs = {"input_ids": torch.randn(4, 5, 16), "labels": torch.randint(3, (4,))}
            total += self.training_step(inputs)
            nn.utils.clip_grad_norm_(self.model.parameters(), self.args.max_grad_norm)
            self.optimizer.step()
            self.scheduler.step()
            self.model.zero_grad()
            for callback in self.callbacks:
                callback(step, total / (step + 1))
        return copy.deepcopy(self.model)


torch.manual_seed(5)
torch.set_num_threads(1)
model = Classifier()
for parameter in model.backbone.parameters():
    parameter.requires_grad_(False)
for parameter in model.backbone.layers[1].parameters():
    parameter.requires_grad_(True)
trained = Trainer(model, Arguments(), [lambda step, loss: print(step, f"{loss.item():.6f}")]).train()
print(hashlib.sha256(b"".join(tensor.numpy().tobytes() for tensor in trained.state_dict().values())).hexdigest())

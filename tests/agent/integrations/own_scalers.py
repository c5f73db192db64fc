"""Loss scalers with the interfaces of DeepSpeed, Megatron-LM and fairseq, and an optimizer with float32 copies.

Those libraries need a GPU. These scalers have the names, arguments and order of calls of theirs: DeepSpeed 0.19
(update_scale(), cur_scale), Megatron-LM 0.16 (update(), scale, a tensor) and fairseq 0.12 (check_overflow(), which
raises, update(), loss_scale).
"""

from __future__ import annotations

from typing import Any

import torch

from tests.agent.integrations.trained import BATCH, Network, samples

GROWTH_INTERVAL = 8


class LikeDeepSpeed:
    """Halves at an overflow, doubles after GROWTH_INTERVAL good steps."""

    def __init__(self, scale: float) -> None:
        self.cur_scale = scale
        self.good_steps = 0

    def factor(self) -> Any:
        return self.cur_scale

    def ends(self, overflow: bool) -> bool:
        """Ends a step before its update. Returns whether the step is skipped."""
        self.update_scale(overflow)
        return overflow

    def update_scale(self, overflow: bool) -> None:
        self.good_steps = 0 if overflow else self.good_steps + 1
        if overflow:
            self.cur_scale = max(self.cur_scale / 2, 1.0)
        elif self.good_steps % GROWTH_INTERVAL == 0:
            self.cur_scale *= 2

    def after_step(self) -> None:
        pass


class LikeMegatron:
    def __init__(self, scale: float) -> None:
        self.scale = torch.tensor([scale])
        self.good_steps = 0

    def factor(self) -> Any:
        return self.scale

    def ends(self, overflow: bool) -> bool:
        self.update(overflow)
        return overflow

    def update(self, found_inf: bool) -> None:
        self.good_steps = 0 if found_inf else self.good_steps + 1
        if found_inf:
            self.scale = torch.clamp(self.scale / 2, min=1.0)
        elif self.good_steps % GROWTH_INTERVAL == 0:
            self.scale = self.scale * 2

    def after_step(self) -> None:
        pass


class LikeFairseq:
    def __init__(self, scale: float) -> None:
        self.loss_scale = scale
        self.good_steps = 0

    def factor(self) -> Any:
        return self.loss_scale

    def ends(self, overflow: bool) -> bool:
        try:
            self.check_overflow(float("inf") if overflow else 1.0)
        except OverflowError:
            return True
        return False

    def check_overflow(self, grad_norm: float) -> None:
        if grad_norm == float("inf"):
            self.good_steps = 0
            self.loss_scale = max(self.loss_scale / 2, 1.0)
            raise OverflowError(f"setting loss scale to {self.loss_scale}")

    def update(self) -> None:
        self.good_steps += 1
        if self.good_steps % GROWTH_INTERVAL == 0:
            self.loss_scale *= 2

    def after_step(self) -> None:
        self.update()


SCALERS: dict[str, Any] = {"deepspeed": LikeDeepSpeed, "megatron": LikeMegatron, "fairseq": LikeFairseq}


class MixedPrecisionOptimizer:
    """Updates float32 copies of half weights, as those libraries do: `optimizer` never sees the half gradients.

    in_parts: whether it steps once for each parameter group, as ZeRO of DeepSpeed does.
    """

    in_parts = False

    def __init__(self, optimizer: torch.optim.Optimizer, loss_scaler: Any) -> None:
        self.optimizer, self.loss_scaler = optimizer, loss_scaler
        (group,) = optimizer.param_groups
        self.halves = list(group["params"])
        self.copies = [half.detach().float().requires_grad_() for half in self.halves]
        group["params"] = self.copies
        self.skipped_steps = 0

    def backward(self, loss: torch.Tensor) -> None:
        (loss.float() * self.loss_scaler.factor()).sum().backward()

    def step(self) -> None:
        scale = float(self.loss_scaler.factor())
        overflow = any(not bool(torch.isfinite(half.grad).all()) for half in self.halves)
        if self.loss_scaler.ends(overflow):
            self.skipped_steps += 1
        else:
            for half, copy in zip(self.halves, self.copies, strict=True):
                copy.grad = half.grad.float() / scale
            self._update()
            for half, copy in zip(self.halves, self.copies, strict=True):
                copy.grad = None
                half.data.copy_(copy.data)
            self.loss_scaler.after_step()
        for half in self.halves:
            half.grad = None

    def _update(self) -> None:
        if not self.in_parts:
            self.optimizer.step()
            return
        (group,) = groups = self.optimizer.param_groups
        for parameters in (self.copies[:2], self.copies[2:]):
            self.optimizer.param_groups = [{**group, "params": parameters}]
            self.optimizer.step()
        self.optimizer.param_groups = groups


def training(scaler: Any, bad_from: int | None = None) -> tuple[torch.nn.Module, MixedPrecisionOptimizer]:
    model = Network(bad_from).half()
    return model, MixedPrecisionOptimizer(torch.optim.AdamW(model.parameters(), lr=1e-3), scaler)


def train(model: torch.nn.Module, optimizer: MixedPrecisionOptimizer, steps: int) -> None:
    data = samples(BATCH * steps)
    for first in range(0, len(data), BATCH):
        batch = data[first : first + BATCH]
        x, labels = (torch.stack([sample[name] for sample in batch]) for name in ("x", "labels"))
        optimizer.backward(model(x.half(), labels)["loss"])
        optimizer.step()

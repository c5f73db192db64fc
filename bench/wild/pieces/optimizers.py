"""Optimizers and loss scalers of the generated programs, as source text.

`make` has `{params}` where the parameters stand. Some bring a class of their own.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class OptimizerText:
    make: str
    code: str = ""
    closure: bool = False


_ADAFACTOR = """
class $Factored(torch.optim.Optimizer):
    def __init__(self, params, lr=0.01, decay=0.95, dtype=torch.float32):
        super().__init__(params, {"lr": lr, "decay": decay, "dtype": dtype})

    @torch.no_grad()
    def step(self, closure=None):
        with torch.enable_grad():
            $value = closure() if closure else None
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is None:
                    continue
                $grad, $memo = p.grad.float(), self.state[p]
                $square = $grad.square() + 1e-30
                if p.dim() >= 2:
                    $flat = $square.flatten(1)
                    if not $memo:
                        $memo["row"] = torch.zeros($flat.shape[0], dtype=group["dtype"])
                        $memo["col"] = torch.zeros($flat.shape[1], dtype=group["dtype"])
                    $memo["row"].mul_(group["decay"]).add_($flat.mean(1), alpha=1 - group["decay"])
                    $memo["col"].mul_(group["decay"]).add_($flat.mean(0), alpha=1 - group["decay"])
                    $mean = $memo["row"].float().mean().clamp_min(1e-30)
                    $denominator = torch.outer($memo["row"].float() / $mean, $memo["col"].float()).view_as($grad)
                else:
                    if not $memo:
                        $memo["full"] = torch.zeros_like(p, dtype=group["dtype"])
                    $memo["full"].mul_(group["decay"]).add_($square, alpha=1 - group["decay"])
                    $denominator = $memo["full"].float()
                $delta = $grad * $denominator.clamp_min(1e-16).rsqrt()
                $delta = $delta / $delta.norm().div($delta.numel() ** 0.5).clamp_min(1.0)
                p.add_($delta.to(p.dtype), alpha=-group["lr"])
        return $value
"""

_OWN = """
class $Momentum(torch.optim.Optimizer):
    def __init__(self, params, lr=0.02, beta=0.9, dtype=torch.float32):
        super().__init__(params, {"lr": lr, "beta": beta, "dtype": dtype})

    @torch.no_grad()
    def step(self, closure=None):
        with torch.enable_grad():
            $value = closure() if closure else None
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is None:
                    continue
                $memo = self.state[p]
                if "$buffer" not in $memo:
                    $memo["$buffer"] = torch.zeros_like(p, dtype=group["dtype"])
                $memo["$buffer"].mul_(group["beta"]).add_(p.grad)
                $move = $memo["$buffer"].to(p.dtype)
                <<p.add_($move, alpha=-group["lr"])~~p -= group["lr"] * $move>>
        return $value
"""

OPTIMIZERS = {
    "sgd": OptimizerText("torch.optim.SGD({params}, lr=0.05, momentum=0.9)"),
    "adamw": OptimizerText("torch.optim.AdamW({params}, lr=2e-3, foreach=True, eps=$eps)"),
    "fused": OptimizerText("torch.optim.AdamW({params}, lr=2e-3, fused=True, eps=$eps)"),
    "adafactor": OptimizerText("$Factored({params}, lr=0.003)", _ADAFACTOR),
    "lbfgs": OptimizerText("torch.optim.LBFGS({params}, lr=0.1, max_iter=3, history_size=4)", closure=True),
    "own": OptimizerText("$Momentum({params}, lr=0.02)", _OWN),
}

OWN_SCALER = """
class $OwnScaler:
    def __init__(self, value, patience):
        self.$value, self.$patience, self.$good, self.$overflow = value, patience, 0, False

    def $m_scale(self, $amount):
        return <<$amount * self.$value~~self.$value * $amount>>

    def $m_unscale(self, $which):
        for group in $which.param_groups:
            for p in group["params"]:
                if p.grad is not None:
                    p.grad.<<mul_(1 / self.$value)~~div_(self.$value)>>
                    if not torch.isfinite(p.grad).all():
                        self.$overflow = True

    def $m_step(self, $which):
        if not self.$overflow:
            $which.step()

    def $m_update(self):
        if self.$overflow:
            self.$value, self.$good = self.$value / 2, 0
        else:
            self.$good += 1
            if self.$good >= self.$patience:
                self.$value, self.$good = self.$value * 2, 0
        self.$overflow = False
"""

"""Recognizes the losses of programs that train with torch.autograd.grad() or torch.func.grad(), not backward()."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from ammeter.torch_hooks.targets import Watched

CALL = "torch.autograd.grad()"


def loss_of(args: tuple[Any, ...], kwargs: dict[str, Any], watched: Watched) -> torch.Tensor | None:
    """Returns the loss that a call of torch.autograd.grad() differentiates by watched weights.

    Returns:
        None for any other use: gradients by an input, gradients that are differentiated again, such as a penalty, and
        a call with gradients to start with.
    """
    loss = _only(_argument(args, kwargs, 0, "outputs"))
    inputs = _argument(args, kwargs, 1, "inputs")
    inputs = (inputs,) if isinstance(inputs, torch.Tensor) else inputs
    if loss is None or loss.numel() != 1 or not isinstance(inputs, list | tuple) or not inputs:
        return None
    if _only(_argument(args, kwargs, 2, "grad_outputs")) is not None:
        return None
    if _is_transformed(loss):
        return loss if _has_weight_behind(inputs[0], watched) and not _is_batched(loss) else None
    if _argument(args, kwargs, 4, "create_graph"):
        return None
    return loss if watched.optimizers_of(inputs) else None


def gradients_in(args: tuple[Any, ...], kwargs: dict[str, Any], results: Any) -> dict[int, torch.Tensor]:
    """Returns the gradients that a call has returned, by id of the input; those of a transform are left out."""
    inputs = _argument(args, kwargs, 1, "inputs")
    inputs = (inputs,) if isinstance(inputs, torch.Tensor) else inputs
    if is_transforming() or not isinstance(results, list | tuple) or len(results) != len(inputs):
        return {}
    return {id(tensor): gradient for tensor, gradient in zip(inputs, results, strict=True) if gradient is not None}


def may_train(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Whether a call of torch.autograd.grad() differentiates one number by weights, of whatever model."""
    loss = _only(_argument(args, kwargs, 0, "outputs"))
    inputs = _argument(args, kwargs, 1, "inputs")
    if loss is None or loss.numel() != 1 or not isinstance(inputs, torch.Tensor | list | tuple):
        return False
    first = inputs if isinstance(inputs, torch.Tensor) else next(iter(inputs), None)
    return isinstance(first, torch.nn.Parameter) or _is_transformed(loss)


def is_transforming() -> bool:
    """Whether a transform such as torch.func.grad() runs, in which operators return its own tensors."""
    return _interpreter() is not None


def value_of(loss: torch.Tensor) -> torch.Tensor:
    """Returns the tensor with the number of a loss, which torch.func.grad() wraps."""
    return torch._C._functorch.get_unwrapped(loss) if _is_transformed(loss) else loss


def _argument(args: tuple[Any, ...], kwargs: dict[str, Any], position: int, name: str) -> Any:
    return args[position] if len(args) > position else kwargs.get(name)


def _only(outputs: Any) -> torch.Tensor | None:
    if isinstance(outputs, list | tuple) and len(outputs) == 1:
        (outputs,) = outputs
    return outputs if isinstance(outputs, torch.Tensor) else None


def _is_transformed(tensor: torch.Tensor) -> bool:
    """Whether a tensor belongs to torch.func.grad(), which always creates a graph."""
    return bool(torch._C._functorch.is_gradtrackingtensor(tensor))


def _is_batched(loss: torch.Tensor) -> bool:
    """Whether a loss is one of many, of single samples, or part of a nested transform."""
    value = value_of(loss)
    return torch._C._functorch.is_batchedtensor(value) or _is_transformed(value)


def _has_weight_behind(tensor: Any, watched: Watched) -> bool:
    """Whether a tensor of a transform is a watched weight, or a detached alias of one."""
    if not isinstance(tensor, torch.Tensor) or not _is_transformed(tensor):
        return False
    inner = torch._C._functorch.get_unwrapped(tensor)
    if torch._C._functorch.is_batchedtensor(inner) or _is_transformed(inner):
        return False
    place = inner.data_ptr()
    return any(
        parameter.data_ptr() == place
        for optimizer in watched.optimizers
        for group in optimizer.param_groups
        for parameter in group["params"]
    )


_interpreter: Callable[[], Any] = torch._C._functorch.peek_interpreter_stack

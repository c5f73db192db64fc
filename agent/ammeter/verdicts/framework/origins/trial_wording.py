"""What it means that an operator which made a NaN or an Inf gave this or that when the agent ran it again."""

from __future__ import annotations

LARGEST = {"float16": "65504", "bfloat16": "3.39e38", "float32": "3.4e38"}
"""The largest finite number of each dtype, as text."""


LOW = ("float16", "bfloat16")

KERNEL_FAULTS = ("kernel", "differs")
"""Answers that prove a kernel wrong: another one gives a finite result, and it gives NaN or Inf once more."""


def cause(trial: str, dtype: str, exact: float) -> str:
    """Returns one sentence with a leading space; empty if the operator did not run again.

    Args:
        trial: the answer in an `origin.found` event: `range`, `undefined`, `rounded`, `kernel`, `differs`, `unsteady`,
            or empty.
        dtype: that of the operator's output.
        exact: largest number of its output in float64, below 0 if not known.
    """
    at_most = f", at most {exact:.4g} in float64" if exact >= 0 else ""
    if trial == "range":
        largest = f", {LARGEST[dtype]}" if dtype in LARGEST else ""
        return (
            f" Run again in float64 from the same operands, it reaches {exact:.4g}, more than the largest"
            f" {dtype}{largest}: it is an overflow."
        )
    if trial == "undefined":
        return " Run again from the same operands, it gives NaN or Inf in float64 as well."
    if trial == "rounded":
        return (
            f" Run again from the same operands, it is finite in float64{at_most.removesuffix(' in float64')}, and in"
            f" {dtype} it divides by what {dtype} has rounded to zero."
        )
    if trial == "kernel":
        return (
            f" Run again from the same operands, it makes a NaN or an Inf in {dtype} each time, and at most"
            f" {exact:.4g} in float64, which {dtype} holds: the kernel is at fault, not the numbers."
        )
    if trial == "differs":
        return (
            f" Run twice more from the same operands, it makes a NaN or an Inf in {dtype} in one run and not in the"
            f" other{at_most}, so its kernel does not repeat its result: it reads memory that was not written, has a"
            " race, or the hardware is defective."
        )
    if trial == "unsteady":
        return (
            f" Run again from the same operands, it is finite{at_most}. Either the program"
            " changed its input or output in place, unseen by autograd, or its kernel does not repeat its result,"
            " because of uninitialized memory, a race or the hardware."
        )
    return ""


def fix(trial: str, place: str, op: str, dtype: str, *, backward: bool = False) -> str:
    """Returns what to do about the operator; empty if the trial does not tell.

    Args:
        place: the operator's line, its module or a description of where it is.
        op: the operator.
        dtype: that of its output.
        backward: whether its backward pass ran again.
    """
    if backward and trial in _BACKWARD:
        return _BACKWARD[trial].format(place=place)
    if trial == "range":
        return (
            f"Reduce the inputs of {place} with a norm, a clamp or a smaller factor, or run it in a dtype with a wider"
            " range, such as float32 or bfloat16 instead of float16."
        )
    if trial == "undefined":
        return (
            f"Check the inputs of {place}: a division by zero, the log or root of zero or of a negative number, a"
            " softmax over -Inf alone, or an exponential beyond every dtype. A wider dtype there does not help, unless"
            " an operator before it has rounded its input to zero. Clamp the input, or add an eps that its dtype holds."
        )
    if trial in KERNEL_FAULTS:
        return (
            f"Run {place} with another kernel: {_other_kernel(op, dtype)}. Then try another release of torch, and"
            " report the operator to the maintainers of the kernel."
        )
    if trial == "unsteady":
        return (
            f"Check whether the program writes into the input or output of {place}, through .data, under"
            " torch.no_grad() or in a hook. If it does not, train on another device or machine: a result that changes"
            " from run to run points to uninitialized memory, a race or a defective device."
        )
    return ""


_BACKWARD = {
    "range": "Lower the loss scale, or use bfloat16, whose range reaches 3e38. If it overflows at a scale of 1, too,"
    " run {place} in float32 within torch.autocast(device, enabled=False).",
    "undefined": "Check the derivative of {place}: it is infinite or undefined at these inputs, as of a square root, a"
    " norm or a power at zero, a division by zero, or an arc cosine of 1. Add an eps inside, such as"
    " torch.sqrt(x + eps), or clamp the input first; a torch.where after it does not help, because zero times Inf is"
    " NaN.",
    "rounded": "Run {place} in float32 within torch.autocast(device, enabled=False), or add an eps that its dtype"
    " holds.",
}
"""Answer about a backward pass -> what to do."""


def _other_kernel(op: str, dtype: str) -> str:
    """Returns how a program runs an operator with another kernel."""
    low = "in float32 under torch.autocast(device_type, enabled=False), with .float() on its inputs"
    wider = low if dtype in LOW else "in float64"
    otherwise = f"{wider}, or from simpler operators by its formula"
    return next((switch for words, switch in _SWITCHES if any(word in op for word in words)), otherwise)


_SWITCHES = (
    (("Compiled",), "without torch.compile"),
    (
        ("Attention",),
        "within torch.nn.attention.sdpa_kernel(SDPBackend.MATH), or with attn_implementation='eager' in transformers",
    ),
    (
        ("Convolution", "BatchNorm", "Rnn", "Lstm"),
        "on the CPU within torch.backends.mkldnn.flags(enabled=False), on CUDA with torch.backends.cudnn.enabled ="
        " False",
    ),
    (
        ("Mm", "Addmm", "Bmm", "Linear"),
        "on the CPU within torch.backends.mkldnn.flags(enabled=False), on CUDA in float32 within"
        " torch.autocast('cuda', enabled=False)",
    ),
)
"""Parts of operators' names -> how they run with another kernel."""

"""Checks that each GPU computes a convolution in float16 as it does in float32."""

from __future__ import annotations

from collections.abc import Iterator
from types import ModuleType

from ammeter.doctor.line import Line, fail, ok, warn
from ammeter.verdicts.framework.float16 import is_wrong_on

BATCH, CHANNELS, PIXELS = 8, 64, 32
"""Sizes of the convolution. GPUs of the GTX 16 series compute smaller batches right (ultralytics#17977)."""

MAX_RELATIVE_ERROR = 0.02
"""Of the largest output. float16 rounds to 0.0005, and a sum of 576 products adds some of it."""

ABOUT = "float16"
REMEDY = "train in float32 on this GPU, with autocast off"


def lines(torch: ModuleType) -> Iterator[Line]:
    """Yields one line for each GPU."""
    for index in range(torch.cuda.device_count()):
        name = torch.cuda.get_device_name(index)
        try:
            error = relative_error(torch, torch.device("cuda", index))
        except RuntimeError as problem:  # such as memory that others use
            yield warn(ABOUT, f"{name}: the convolution raised {str(problem).splitlines()[0]}", "run it on a free GPU")
            continue
        yield line_of(name, torch.cuda.get_device_capability(index), error)


def line_of(name: str, capability: tuple[int, int], error: float) -> Line:
    """Returns the line of a GPU with this relative error, NaN if an output is not finite."""
    if not error <= MAX_RELATIVE_ERROR:
        return fail(ABOUT, f"{name} computes a convolution wrong: relative error {error:.3g} against float32", REMEDY)
    if is_wrong_on(name, "{}.{}".format(*capability)):
        return warn(ABOUT, f"{name} is of a series that computes wrong in float16, although not this time", REMEDY)
    return ok(ABOUT, f"{name} computes a convolution as in float32, with a relative error of {error:.1g}")


def relative_error(torch: ModuleType, device: object) -> float:
    """Returns the largest difference of a convolution in float16 from the one in float32; NaN if one is not finite."""
    generator = torch.Generator().manual_seed(0)
    batch = torch.randn(BATCH, CHANNELS, PIXELS, PIXELS, generator=generator).to(device)
    weight = torch.randn(CHANNELS, CHANNELS, 3, 3, generator=generator).to(device)
    with torch.no_grad():
        exact = torch.nn.functional.conv2d(batch, weight)
        half = torch.nn.functional.conv2d(batch.half(), weight.half()).float()
        return float((half - exact).abs().max() / exact.abs().max())

"""Streams of runs that are slower than they need be, or run on what is too old; and healthy ones beside them."""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace

from ammeter.wire.frames import Hello
from tests.agent.stream_builder import Stream, warm
from tests.agent.streams import broken, healthy

GPU = {"torch": "2.13.0", "device": "NVIDIA H200", "cuda": "12.8", "capability": "9.0", "dtypes": "float32"}
GIB = 2.0**30


def on(stream: Stream, **environment: str) -> Stream:
    """The stream as a process with this environment writes it."""
    first = stream.frames[0]
    assert isinstance(first, Hello)
    stream.frames[0] = replace(first, environment=environment)
    return stream


def census(stream: Stream, share: float = 1.0, **more: Any) -> Stream:
    """One forward pass, counted: a GFLOP of matrix work, 100 casts of 20 KiB."""
    data = {
        "phase": "forward",
        "flops_eligible": 10**9,
        "flops_low": round(share * 10**9),
        "share": share,
        "casts": 100,
        "cast_bytes": 20480,
        "recast_bytes": 0,
        "attention": ["flash"],
        "seconds": 0.002,
        "whole": True,
    }
    return stream.event("kernels.census", **data | more)


def fallback(stream: Stream, reason: str = "autocast-disabled", share: float = 0.25, **more: Any) -> Stream:
    data = {
        "op": "addmm",
        "module": "blocks.1.mlp.fc",
        "modules": 2,
        "reason": reason,
        "dtype": "float32",
        "shape": "(128, 64) x (64, 256)",
        "caller": "model.py:53",
        "flops_share": share,
    }
    return stream.event("kernel.fallback", **data | more)


def on_gpu() -> Stream:
    return on(warm(3), **GPU)


def goes_on(stream: Stream, steps: int = 30) -> Stream:
    for _ in range(steps):
        stream.good(65536)
    return stream.bye()


def memory(stream: Stream, readings: int, used: float, held: float, retries: float = 0.0, more: float = 0.0) -> Stream:
    """One reading at every third step; retries grow by `more` at each."""
    for reading in range(readings):
        columns = {"device_allocated_bytes": used, "device_reserved_bytes": held}
        stream.good(65536, device_alloc_retries=retries + more * reading, **columns)
        stream.good(65536).good(65536)
    return stream


@healthy
def all_that_is_eligible_in_half_precision_on_a_gpu() -> Stream:
    return goes_on(memory(census(on_gpu()), 40, used=40 * GIB, held=46 * GIB))


@healthy
def a_router_in_float32_a_head_of_ten_classes_and_a_lora_of_rank_4() -> Stream:
    stream = fallback(census(on_gpu(), 0.99), share=0.01, module="router")
    fallback(stream, "misaligned", 0.2, module="head", dtype="bfloat16", shape="(8, 512) x (512, 10)")
    fallback(stream, "misaligned", 0.05, module="q.lora_a", op="mm", dtype="bfloat16", shape="(8, 512) x (512, 4)")
    fallback(stream, "misaligned", 0.1, op="convolution", module="stem", shape="(8, 3, 64, 64) x (64, 3, 7, 7)")
    return goes_on(stream)


@healthy
def a_gpu_whose_memory_is_nearly_full_and_that_retried_while_it_started() -> Stream:
    stream = memory(on_gpu(), 5, used=70 * GIB, held=78 * GIB, more=1)
    return goes_on(memory(stream, 40, used=72 * GIB, held=78 * GIB, retries=5))


@broken
def fp32_fallback() -> Stream:
    return goes_on(fallback(census(on_gpu(), 0.75)))


def sensitive(stream: Stream, error: float = 0.14, **more: Any) -> Stream:
    data = {
        "op": "cos",
        "module": "blocks.1.attention.rotary",
        "caller": "model.py:33",
        "error": error,
        "positions": True,
        "dtype": "bfloat16",
        "rounded_op": "to_copy",
        "rounded_at": "model.py:31",
        "first_step": 1,
    }
    return stream.event("kernels.sensitive", **data | more)


@broken
def sensitive_op_in_half() -> Stream:
    return goes_on(sensitive(census(on_gpu())))


@healthy
def a_chain_of_roundings_to_bfloat16() -> Stream:
    return goes_on(sensitive(census(on_gpu()), 0.0099, op="rsqrt", positions=False))


@broken
def misaligned_matmul() -> Stream:
    more = {"op": "mm", "module": "head", "modules": 1, "dtype": "float16", "shape": "(8192, 768) x (768, 50257)"}
    return goes_on(fallback(census(on_gpu()), "misaligned", 0.31, **more))


@broken
def sdpa_math() -> Stream:
    stream = census(on_gpu(), 0.8, attention=["math"])
    return goes_on(fallback(stream, "sdpa-math", 0.2, op="bmm", module="blocks.0.attention", caller="model.py:41"))


@broken
def cast_churn() -> Stream:
    return goes_on(census(on_gpu(), casts=900, recast_bytes=4 * 2**20, cast_bytes=5 * 2**20))


def round_trips(stream: Stream, share: float = 0.3, **more: Any) -> Stream:
    """Adds casts to float32 and back that take this share of the time of 10^6 FLOPs on a V100."""
    moved = round(share * 10**6 / 139)
    data = {"moved_bytes": moved, "casts": 4, "flops_low": 10**6, "lines": 1, "caller": "lora.py:12"}
    data |= {"caller_bytes": moved, "returned_at": "lora.py:13", "module": "layers.0.down", "modules": 2}
    return stream.event("kernels.round_trips", **data | {"dtype": "bfloat16"} | more)


@broken
def activation_casts() -> Stream:
    return goes_on(round_trips(census(on_gpu())))


@healthy
def casts_beside_large_matrix_products() -> Stream:
    return goes_on(round_trips(census(on_gpu()), 0.099))


def recomputed(stream: Stream, **more: Any) -> Stream:
    """Adds a module that backward() ran again in float16, after a forward pass in bfloat16."""
    data = {"module": "blocks.3.fc", "modules": 5, "dtype": "bfloat16", "again": "float16", "autocast": "bfloat16"}
    data |= {"autocast_again": "float16", "caller": "blocks.py:31", "line": "train.py:50"}
    return stream.event("kernels.recomputed", **data | {"checkpoint": False, "raised": False, "first_step": 1} | more)


@broken
def dtype_switched() -> Stream:
    return goes_on(recomputed(warm(3)))


@broken
def memory_not_saved() -> Stream:
    stream = memory(on(warm(30), **GPU), 5, used=70 * GIB, held=79 * GIB)
    return goes_on(memory(stream, 10, used=50 * GIB, held=79 * GIB, more=2))


@broken
def stale_stack() -> Stream:
    return goes_on(on(warm(3), torch="2.1.2+cu118", device="NVIDIA A100", cuda="11.8", capability="8.0"))

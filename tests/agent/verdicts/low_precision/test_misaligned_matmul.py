"""misaligned-matmul fires where a real share of the FLOPs has a large size that is no multiple of 8."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from ammeter.verdicts.framework.finding import Finding
from ammeter.verdicts.low_precision.misaligned_matmul import padded
from tests.agent.stream_builder import Stream, warm
from tests.agent.stream_judgement import findings
from tests.agent.streams_kernels import GPU, census, fallback, on, on_gpu
from tests.agent.training import watching

HEAD = {"op": "mm", "module": "head", "modules": 1, "dtype": "bfloat16", "shape": "(8192, 768) x (768, 50257)"}


def told(share: float = 0.31, stream: Stream | None = None, **more: Any) -> Stream:
    return fallback(census(stream or on_gpu()), "misaligned", share, **HEAD | more)


def found(stream: Stream) -> Finding:
    return findings(stream)["misaligned-matmul"]


def test_it_names_the_size_and_the_one_to_take() -> None:
    finding = found(told())
    assert ("ticket", 2, 2, "head") == (finding.severity, finding.first_step, finding.opened_step, finding.module)
    assert "31 % of the matrix FLOPs of a forward pass have a size that is not a multiple of 8" in finding.cause
    assert "largest share is in head at model.py:53, with the size 50257 in (8192, 768) x (768, 50257)" in finding.cause
    assert finding.fix.startswith("Pad 50257 to 50304 in head: add unused tokens to a vocabulary")
    assert ([50257], [50304]) == (finding.evidence["sizes"], finding.evidence["padded"])


def test_less_than_3_percent_is_not_worth_the_work() -> None:
    assert {} == findings(told(0.029))
    assert {"misaligned-matmul"} == set(findings(told(0.03)))


@pytest.mark.parametrize(
    "shape", ["(8, 512) x (512, 10)", "(8, 12) x (12, 24)", "(8192, 64) x (64, 4)", "(1, 63) x (63, 512)"]
)
def test_a_size_below_a_tile_is_fine(shape: str) -> None:
    assert {} == findings(told(shape=shape))


def test_the_channels_of_a_convolution_count_and_not_its_window() -> None:
    assert {} == findings(told(op="convolution", shape="(8, 64, 65, 65) x (64, 64, 67, 67)"))
    finding = found(told(op="convolution", shape="(8, 100, 65, 65) x (200, 100, 3, 3)"))
    assert finding.fix.startswith("Pad 100 to 104 in head")


def test_the_length_of_a_sequence_is_padded_in_the_batch() -> None:
    finding = found(told(op="bmm", module="attention", shape="(96, 197, 64) x (96, 64, 197)"))
    assert finding.fix.startswith("Pad 197 to 200 where batches are assembled (pad_to_multiple_of=8")


@pytest.mark.parametrize(
    "environment", [{"device": "x86_64", "threads": "8"}, GPU | {"device": "Tesla P100", "capability": "6.0"}]
)
def test_without_tensor_cores_any_size_is_fine(environment: dict[str, str]) -> None:
    assert {} == findings(told(stream=on(warm(3), **environment)))


def test_gpus_of_other_vendors_are_judged() -> None:
    assert "misaligned-matmul" in findings(told(stream=on(warm(3), device="AMD Instinct MI300X", cuda="None")))


def test_a_size_is_padded_as_little_as_it_may() -> None:
    assert [72, 1016, 1088, 32064] == [padded(size) for size in (65, 1009, 1025, 32001)]


def test_it_is_told_once() -> None:
    assert 1 == found(told(stream=told().good(65536), module="tail")).times


@pytest.mark.parametrize(("words", "sizes"), [(333, [333]), (336, [])])
def test_an_odd_vocabulary_of_a_real_run_is_found_on_a_gpu_only(words: int, sizes: list[int], tmp_path: Path) -> None:
    model = torch.nn.Sequential(torch.nn.Embedding(words, 64), torch.nn.Linear(64, 64), torch.nn.Linear(64, words))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with watching(tmp_path, model, optimizer) as seen:
        for _ in range(4):
            with torch.autocast("cpu", torch.bfloat16):
                loss = model(torch.randint(words, (4, 8))).float().square().mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
    if not torch.cuda.is_available():
        assert {} == seen.findings()
    stream = on_gpu()
    for event in seen.events("kernel.fallback"):
        stream.event(event.name, **event.data)
    found_on_gpu = findings(stream)
    assert [sizes] * bool(sizes) == [finding.evidence["sizes"] for finding in found_on_gpu.values()]
    for finding in found_on_gpu.values():
        assert ("misaligned-matmul", "2") == (finding.verdict, finding.module)
        assert "Pad 333 to 336 in 2" in finding.fix

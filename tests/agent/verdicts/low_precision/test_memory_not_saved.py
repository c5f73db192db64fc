"""memory-not-saved fires where allocations keep failing, half of what is held is of no use, or none is saved."""

from __future__ import annotations

from typing import Any

from ammeter.verdicts.framework.finding import Finding
from tests.agent import pairs
from tests.agent.stream_builder import Stream, warm
from tests.agent.stream_judgement import findings
from tests.agent.streams_kernels import GIB, memory


def found(stream: Stream) -> Finding:
    return findings(stream)["memory-not-saved"]


def short(readings: int = 4, used: float = 70 * GIB) -> Stream:
    """Retries that grow by two at each reading, from step 33 on."""
    return memory(warm(30), readings, used=used, held=79 * GIB, more=2)


def wide(readings: int, used: float = 20 * GIB, held: float = 50 * GIB) -> Stream:
    return memory(warm(30), readings, used=used, held=held)


def test_it_opens_at_the_third_reading_with_more_retries() -> None:
    assert {} == findings(short(3))
    finding = found(short(4))
    assert ("ticket", 33, 39) == (finding.severity, finding.first_step, finding.opened_step)
    assert "GPU memory allocations fail and are retried" == finding.title
    assert "short of GPU memory: 6 allocations failed so far and had to be retried." in finding.cause
    assert "torch reserves 79.0 GiB, of which tensors used 70.0 GiB at their peak." in finding.cause


def test_full_memory_and_memory_in_pieces_have_each_their_remedy() -> None:
    assert "Halve the batch size and accumulate gradients over 2 batches" in found(short()).fix
    assert "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True" in found(short(used=60 * GIB)).fix


def test_retries_while_the_run_starts_are_no_sign() -> None:
    assert {} == findings(memory(warm(2), 6, used=70 * GIB, held=79 * GIB, more=1))


def test_a_retry_now_and_then_is_no_sign() -> None:
    stream = warm(30)
    for retries in range(6):
        for _ in range(600):
            stream.good(65536)
        memory(stream, 2, used=70 * GIB, held=79 * GIB, retries=retries)
    assert {} == findings(stream)


def test_it_is_over_when_no_request_has_failed_for_a_thousand_steps() -> None:
    stream = short()
    for _ in range(1000):
        stream.good(65536)
    assert not found(memory(stream, 1, used=70 * GIB, held=79 * GIB, retries=6)).active


def test_ten_readings_with_twice_of_what_is_used_open_it() -> None:
    assert {} == findings(wide(9))
    finding = found(wide(10))
    assert (30, 57) == (finding.first_step, finding.opened_step)
    assert "torch reserves 50.0 GiB of GPU memory, but tensors used 20.0 GiB at their peak" in finding.cause
    assert "expandable_segments:True" in finding.fix
    assert 2.5 == finding.evidence["reserved_over_allocated"]


def test_a_third_more_or_less_than_a_gib_is_normal() -> None:
    assert {} == findings(wide(40, used=30 * GIB, held=45 * GIB))
    assert {} == findings(wide(40, used=0.4 * GIB, held=1.3 * GIB))


def test_one_reading_that_fits_starts_the_count_again() -> None:
    assert {} == findings(memory(memory(wide(9), 1, 40 * GIB, 50 * GIB), 9, 20 * GIB, 50 * GIB))


def test_it_is_over_when_what_is_held_is_used() -> None:
    assert not found(memory(wide(12), 1, used=40 * GIB, held=50 * GIB)).active


def test_a_run_on_the_cpu_is_silent() -> None:
    assert {} == findings(warm(300))


def peaks(run: float, baseline: float, **more: Any) -> dict[str, Finding]:
    """What a float16 run comes to beside a float32 one, given the peaks of both in GiB."""
    mine = pairs.course(precision="float16", row=lambda step: {"device_allocated_bytes": run * GIB}, **more)
    theirs = pairs.course(row=lambda step: {"device_allocated_bytes": baseline * GIB})
    return pairs.judged(mine, theirs)


def test_half_precision_that_takes_as_much_as_its_float32_baseline_saves_nothing() -> None:
    finding = peaks(11.6, 12.0)["memory-not-saved"]
    pairs.check_words(finding)
    assert "Half precision saves no GPU memory: 11.6 GiB against 12.0 GiB" == finding.title
    assert "tensors used 11.6 GiB at their peak in float16, and 12.0 GiB in the float32 baseline base" in finding.cause
    assert "torch.cuda.memory._record_memory_history()" in finding.fix
    assert 0.967 == finding.evidence["ratio"]


def test_a_tenth_less_small_models_and_other_settings_are_fine() -> None:
    assert {} == peaks(10.8, 12.0) | peaks(0.9, 0.9)
    assert ["not-comparable"] == list(peaks(12.0, 12.0, config={**pairs.CONFIG, "batch": 16}))

"""Each known bug has its thread, and matches the releases, devices and operators that the thread names."""

from __future__ import annotations

import re

import pytest

from ammeter.verdicts.kernels.known_bugs import KNOWN_BUGS, Facts, KnownBug, of_machine

BY_THREAD = {bug.thread: bug for bug in KNOWN_BUGS}
H100: Facts = {"torch": "2.13.0+cu130", "cudnn": "92000", "capability": "9.0", "device": "NVIDIA H100 80GB HBM3"}


@pytest.mark.parametrize("bug", KNOWN_BUGS, ids=lambda bug: bug.thread)
def test_an_entry_has_a_thread_and_a_limit(bug: KnownBug) -> None:
    assert re.fullmatch(r"https://github\.com/[\w.-]+/[\w.-]+/issues/\d+", bug.url)
    assert all((bug.operators, bug.condition, bug.effect, bug.remedy))
    assert bug.torch or bug.cudnn or bug.device or bug.package


def test_threads_are_listed_once() -> None:
    assert len(KNOWN_BUGS) == len(BY_THREAD)


@pytest.mark.parametrize(
    ("version", "matches"),
    [("2.11.0", True), ("2.13.1+cu130", True), ("2.10.1", False), ("2.14.0", False), ("", False), ("main", False)],
)
def test_releases_from_the_first_to_the_last_match(version: str, matches: bool) -> None:
    assert matches == BY_THREAD["pytorch/pytorch#196678"].fits_machine({**H100, "torch": version}, "cuda")


@pytest.mark.parametrize(("version", "matches"), [("2.4.0", True), ("2.4.1+cpu", False), ("2.3.1", True)])
def test_a_last_release_with_a_patch_ends_there(version: str, matches: bool) -> None:
    assert matches == BY_THREAD["pytorch/pytorch#127055"].fits_machine({"torch": version}, "cpu")


@pytest.mark.parametrize(
    ("device", "capability", "matches"),
    [
        ("NVIDIA GeForce GTX 1660 Ti", "7.5", True),
        ("Quadro T1000", "7.5", True),
        ("Tesla T4", "7.5", False),
        ("NVIDIA GeForce RTX 2060", "7.5", False),
        ("NVIDIA T1000", "8.9", False),
    ],
)
def test_the_gtx_16_series_is_known_by_name(device: str, capability: str, matches: bool) -> None:
    bug = BY_THREAD["ultralytics/yolov5#7908"]
    assert matches == bug.fits_machine({"torch": "2.0.1", "device": device, "capability": capability}, "cuda")


def test_packages_that_are_not_installed_have_no_bugs() -> None:
    threads = {bug.thread for bug in of_machine(H100, "cuda", ["flash_attn"])}
    assert "Dao-AILab/flash-attention#2324" in threads
    assert "Dao-AILab/flash-attention#2324" not in {bug.thread for bug in of_machine(H100, "cuda", [])}


def test_an_operator_matches_by_name_direction_and_dtype() -> None:
    bug = BY_THREAD["pytorch/pytorch#196678"]
    op = "ScaledDotProductCudnnAttentionBackward0"
    assert bug.fits_operator(op, "backward", "bfloat16")
    assert not bug.fits_operator(op, "forward", "bfloat16")
    assert not bug.fits_operator(op, "backward", "float32")
    assert not bug.fits_operator("ScaledDotProductEfficientAttentionBackward0", "backward", "bfloat16")

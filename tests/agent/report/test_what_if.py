"""`ammeter report --what-if`: as a table, as JSON, and with values that are wrong."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from ammeter.__main__ import main
from ammeter.whatif.cells import count
from tests.agent.report.reporting import as_json, as_text, written
from tests.agent.stream_builder import Stream


def spread(exponents: int, highest: int = 0) -> list[float]:
    return [2.0 ** (highest - exponent) for exponent in range(exponents)]


def run(folder: Path, tensors: dict[str, list[float]], rank: int = 0, elements: int = 0) -> Path:
    """A run whose gradients were these numbers at a scale of 2^10, and its weights half of the first one's."""
    stream = Stream()
    for _ in range(10):
        stream.good(scale=1024.0)
    for of, scale, chosen in (("gradient", 1024.0, tensors), ("weight", 1.0, {"w": [0.5, 0.25]})):
        entries = []
        for name, numbers in chosen.items():
            values = np.array(numbers, np.float32)
            (counted,) = count(values, [len(values)])
            known = {"tensor": name, "elements": elements or len(values), "absmax": float(np.abs(values).max())}
            entries.append({**known, **counted._asdict()})
        stream.event("tensor.exponents", of=of, scale=scale, tensors=entries)
    return written(stream, folder, rank)


TENSORS = {"narrow.weight": spread(8), "wide.weight": spread(38, 10), "unused.bias": [0.0]}


def test_the_table_has_the_shares_and_the_narrowest_format(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run(tmp_path, TENSORS)
    text = as_text(capsys, tmp_path, "--what-if")
    assert "What if: gradients in float16 at the recorded scale" in text
    assert "wide.weight 2^10 0 26 % 7.9 % float16, 2^14" in text
    assert "narrow.weight 2^10 0 0 0 FP8 e4m3fn, 2^17" in text
    assert "unused.bias – – – – only zeros were read" in text
    assert "Of 3 tensors: 1 down to FP8 e4m3fn, 1 down to float16, 1 only zeros." in text
    assert text.index("wide.weight") < text.index("narrow.weight")


def test_format_scale_and_weights_are_asked_for(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run(tmp_path, TENSORS)
    text = as_text(capsys, tmp_path, "--what-if", "float8_e5m2@2^28")
    assert "What if: gradients in FP8 e5m2 at a scale of 268435456 (2^28)" in text
    assert "narrow.weight 38 % 0 0 FP8 e4m3fn" in text
    assert "at the best scale of each tensor" in as_text(capsys, tmp_path, "--what-if", "float8_e4m3fn@best")
    assert "What if: weights in FP8 e4m3fn" in as_text(capsys, tmp_path, "--what-if", "weight:float8_e4m3fn@1")


def test_json_has_it_only_if_it_is_asked_for(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run(tmp_path, TENSORS)
    assert "what_if" not in as_json(capsys, tmp_path)
    found = as_json(capsys, tmp_path, "--what-if", "@16")["what_if"]
    assert ("gradient", "float16", 16.0) == (found["of"], found["format"], found["scale"])
    assert list(TENSORS) == [item["name"] for item in found["items"]]
    assert 16.0 == found["items"][0]["scale"]
    assert ["float8_e4m3fn", "float8_e5m2", "float16", "bfloat16"] == [
        row["format"] for row in found["items"][0]["formats"]
    ]


def test_the_lowest_rank_with_readings_answers(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run(tmp_path, {"of.one": [1.0]}, rank=1)
    run(tmp_path, {"of.zero": [1.0]}, rank=0)
    assert ["of.zero"] == [item["name"] for item in as_json(capsys, tmp_path, "--what-if")["what_if"]["items"]]


def test_a_run_without_readings_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    written(Stream().good(), tmp_path)
    assert "Nothing was read for this question" in as_text(capsys, tmp_path, "--what-if")
    assert [] == as_json(capsys, tmp_path, "--what-if")["what_if"]["items"]


def test_a_small_sample_is_undecided(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run(tmp_path, {"few.weight": [1.0] * 30 + [2.0**-40]}, elements=10**6)
    text = as_text(capsys, tmp_path, "--what-if", "float8_e4m3fn@best")
    assert "3.2 % ±10 too few elements read" in text
    assert "Of 1 tensor: 1 undecided." in text


def test_of_many_tensors_the_worst_are_shown(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run(tmp_path, {**{f"layers.{at}": spread(8) for at in range(60)}, "last": spread(60, 20)})
    text = as_text(capsys, tmp_path, "--what-if")
    assert "last" in text
    assert "layers.50" not in text
    assert "21 more tensors that lose less; --json has all." in text


@pytest.mark.parametrize(
    ("question", "words"),
    [
        ("float8", "format is 'float8'; use float8_e4m3fn, float8_e5m2, float16, bfloat16"),
        ("float16@high", "scale is 'high'; use a number from 2^-126 to 2^126 such as 1024 or 2^10, recorded or best"),
        ("@0", "scale is '0'"),
        ("@2^x", "scale is '2^x'"),
        ("activation:float16", "what is cast is 'activation'; use gradient or weight"),
    ],
)
def test_a_wrong_value_is_a_clear_error(question: str, words: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(["report", "--what-if", question])
    assert words in capsys.readouterr().err

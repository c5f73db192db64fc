from __future__ import annotations

import pytest
import torch

from options import read_options

MISTAKES = {
    "--steps 0": "argument --steps: '0' will not do; use a whole number of 1 or more.",
    "--clip lots": "argument --clip: 'lots' is no number; write 0.5, for instance.",
    "--clip -1": "argument --clip: '-1' will not do; use a number above 0.",
    "--dropout 1": "argument --dropout: '1' will not do; use a number from 0 to below 1.",
    "--width 60 --heads 8": "--width is 60, which 8 heads cannot share; use a multiple of 8.",
    "--width 20 --tiny --heads 3": "--width is 20, which 3 heads cannot share; use a multiple of 3.",
    "--arch cnn --heads 4": "--heads is 4, but --arch cnn has no heads; leave it out.",
    "--pixels 16": "--pixels is 16, but --arch gpt has no pixels; leave it out.",
    "--arch vit": "argument --arch: invalid choice: 'vit'",
    "--resume": "--resume needs to know from where; add --checkpoint PATH.",
    "--resume --checkpoint /nowhere/run.pt": "--checkpoint is '/nowhere/run.pt', which is no file to resume from",
}


@pytest.mark.parametrize(("given", "told"), MISTAKES.items(), ids=MISTAKES.keys())
def test_a_mistake_is_told_with_its_value_and_the_remedy(
    given: str, told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as refused:
        read_options(given.split())
    assert 2 == refused.value.code
    assert told in capsys.readouterr().err


def test_a_device_that_is_not_there_is_refused(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(SystemExit):
        read_options(["--device", "cuda"])
    assert "--device is 'cuda', but torch sees no CUDA device here; use --device cpu" in capsys.readouterr().err
    assert "cpu" == read_options(["--device", "auto"]).device


def test_tiny_only_changes_defaults() -> None:
    tiny = read_options(["--tiny", "--batch", "16"])
    assert (2, 16) == (tiny.layers, tiny.batch)


def test_each_network_has_its_own_sizes_and_says_what_they_are(capsys: pytest.CaptureFixture[str]) -> None:
    gpt, cnn = (read_options(["--arch", arch]) for arch in ("gpt", "cnn"))
    assert (64, 0, 64) == (gpt.context, gpt.pixels, gpt.width)
    assert (0, 8, 32) == (cnn.context, cnn.pixels, cnn.width)
    assert ("gpt-fp16", "cnn-fp16") == (gpt.name, cnn.name)
    assert ({"context", "heads"}, {"pixels"}) == (
        gpt.recipe().keys() - cnn.recipe(),
        cnn.recipe().keys() - gpt.recipe(),
    )
    with pytest.raises(SystemExit):
        read_options(["--help"])
    helped = " ".join(capsys.readouterr().out.split())
    assert "(gpt 4, cnn 3)" in helped
    assert "on a side of an image (cnn 8)" in helped

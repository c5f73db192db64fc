"""An error that ends a program before its first training call is reported if it is about dtypes."""

from __future__ import annotations

from pathlib import Path

import pytest

from ammeter.wire.frames import Event
from tests.agent.launching import TRAINS, launch
from tests.agent.programs import Ended, steps

pytestmark = pytest.mark.long

MIXED = "model(torch.randn(3, 4).half())\n"
OTHER = "model(torch.randn(3, 5))\n"


@pytest.fixture(scope="module")
def mixed(tmp_path_factory: pytest.TempPathFactory) -> Ended:
    return launch(MIXED, tmp_path_factory.mktemp("mixed"), fresh=True).end()


def test_an_error_about_dtypes_in_the_first_forward_pass_is_a_run_with_its_line(mixed: Ended) -> None:
    (event,) = [frame for frame in mixed.stream() if isinstance(frame, Event) and frame.name == "usage.unsupported_op"]
    line = TRAINS.count("\n") + 1
    assert (["float16", "float32"], f"script.py:{line}") == (event.data["dtypes"], event.data["caller"])
    assert [] == steps(mixed.stream())


def test_the_program_prints_what_it_prints_without_ammeter_and_ends_as_it_does(mixed: Ended, tmp_path: Path) -> None:
    bare = launch(MIXED, tmp_path, fresh=True, through=()).end()
    own = [line for line in mixed.err.splitlines() if not line.startswith("ammeter: ")]
    assert 1 == bare.code == mixed.code
    assert bare.err.replace(str(tmp_path), "") == "\n".join([*own, ""]).replace(str(mixed.folder.parent), "")


def test_another_error_is_left_to_python(tmp_path: Path) -> None:
    ended = launch(OTHER, tmp_path, fresh=True).end()
    assert 1 == ended.code
    assert "but no optimizer of torch made a step before the command ended with exit code 1" in ended.err
    assert [] == ended.streams()

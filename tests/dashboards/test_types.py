"""The JSON of the boards, checked by TypeScript's compiler against Grafana's own types."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from typing import Any

import pytest

from dashboards import rendering
from tests.dashboards.packages import need_packages
from tests.e2e.queries import BOARDS, FOLDER, panels_of

pytestmark = pytest.mark.usefixtures("packages")


@pytest.fixture
def packages() -> None:
    need_packages()


def test_every_board_has_grafanas_types() -> None:
    assert "" == rendering.mistakes({name: (FOLDER / f"{name}.json").read_text() for name in BOARDS})


def test_the_page_that_draws_boards_has_them_too() -> None:
    command = [str(rendering.PACKAGES / ".bin" / "tsc"), "--pretty", "false"]
    assert "" == subprocess.run(command, cwd=rendering.RENDER, capture_output=True, text=True, timeout=300).stdout


def _stat(board: dict[str, Any]) -> dict[str, Any]:
    return next(panel for panel in panels_of(board) if panel["type"] == "stat" and panel["fieldConfig"]["defaults"])


def _threshold_without_value(board: dict[str, Any]) -> None:
    panel = next(panel for panel in panels_of(board) if "thresholds" in panel["fieldConfig"]["defaults"])
    del panel["fieldConfig"]["defaults"]["thresholds"]["steps"][0]["value"]


def _unknown_colour_mode(board: dict[str, Any]) -> None:
    _stat(board)["options"]["colorMode"] = "backgroud"


def _unknown_option(board: dict[str, Any]) -> None:
    _stat(board)["options"]["colourMode"] = "value"


def _unknown_panel(board: dict[str, Any]) -> None:
    _stat(board)["type"] = "graph"


def _limit_as_text(board: dict[str, Any]) -> None:
    _stat(board)["fieldConfig"]["defaults"]["max"] = "1"


MISTAKES = (_threshold_without_value, _unknown_colour_mode, _unknown_option, _unknown_panel, _limit_as_text)


def test_a_mistake_in_a_board_is_found() -> None:
    """The compiler reports the first mistake of an object, so each one is in a board of its own."""

    def with_(spoil: Callable[[dict[str, Any]], None]) -> str:
        board = json.loads((FOLDER / "executive.json").read_text())
        spoil(board)
        return json.dumps(board)

    boards = {spoil.__name__: with_(spoil) for spoil in MISTAKES}
    found = rendering.mistakes(boards)
    assert set(boards) == {name for name in boards if f"{name}.ts(" in found}

"""A person asks a live run for more, and the training process answers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.e2e.live_run import live_run
from tests.house import tree
from tests.server.feeding import serving, wait_until

PROGRAM = tree.fenced(tree.ROOT / "docs" / "asking.md", "python")[0]
STEPS = {"origin": 3, "census": 1, "trial": 2, "tensors": 3}


def test_a_live_run_is_asked_for_each_reading_and_its_answers_arrive(tmp_path: Path) -> None:
    with serving(tmp_path) as client, live_run(client, tmp_path) as run:
        client.headers["X-Ammeter-Request"] = "test"
        path = f"/api/v1/runs/{run}/directives"
        for arm, steps in STEPS.items():  # at once: the process reads them when it closes a step
            answer = client.post(path, params={"arm": arm, "steps": steps})
            assert 200 == answer.status_code, answer.text

        def answers() -> dict[str, dict[str, Any]]:
            items = client.get(path).json()["items"]
            return {item["arm"]: item["answers"][0]["data"] for item in items if item["answers"]}

        wait_until(lambda: set(STEPS) == set(answers()))
        found = answers()
        assert STEPS == {arm: found[arm]["read_steps"] for arm in STEPS}
        assert all(0 < data["seconds"] < data["step_seconds"] for data in found.values())
        assert {("addmm", "float16", 2)} == {
            (operator["op"], operator["dtype"], operator["modules"]) for operator in found["census"]["operators"]
        }
        assert (5, 0, 4) == (found["origin"]["modules"], found["trial"]["bad_steps"], found["tensors"]["gradients"])
        peaks = wait_until(lambda: client.get(f"/api/v1/runs/{run}/events?name=activation.peaks").json()["items"])
        assert {"body.0", "head"} & {str(peak["module"]) for peak in peaks[0]["data"]["modules"]}
        matrix = client.get(f"/api/v1/runs/{run}/tensors/matrix?order=forward").json()
        assert ("forward", ["body.0.weight", "body.0.bias", "head.weight", "head.bias"]) == (
            matrix["order"],
            [item["name"] for item in matrix["items"]],
        )


def test_the_program_of_the_page_asks_and_prints_answers(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with serving(tmp_path) as client, live_run(client, tmp_path):
        program = PROGRAM.replace("http://127.0.0.1:8480", str(client.base_url)).replace('"demo"', '"tests"')

        asks, reads = program.split("for directive in", 1)
        names: dict[str, Any] = {}
        exec(compile(asks, "asking.md", "exec"), names)

        def printed() -> bool:
            exec(compile(f"for directive in{reads}", "asking.md", "exec"), names)
            return "census 0 directive.done" in capsys.readouterr().out

        wait_until(printed)

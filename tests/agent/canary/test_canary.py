"""`ammeter canary` runs real programs twice and says what mixed precision changed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.agent.canary.canaries import BEGIN, canary
from tests.e2e.processes import wait_for

pytestmark = pytest.mark.long

HEALTHY = """
scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
batch_at = time.monotonic()
for step in range(100_000):
    batch_at += 0.06  # an input pipeline, which both runs wait for
    time.sleep(max(0.0, batch_at - time.monotonic()))
    with torch.autocast("cpu", torch.float16):
        output = model(inputs)
    update((output.float() - targets).square().mean(), scaler)
"""

OVERFLOWS = """
for step in range(100_000):
    with torch.autocast("cpu", torch.float16):
        output = 10 * model(inputs)
        square = output * output  # beyond float16 from an output of 256 on
    update((square.float() / 160_000 - 1).square().mean())
"""

PLAIN = """
for step in range(60):
    update((model(inputs) - targets).square().mean())
"""


def ammeter(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-m", "ammeter", *words], capture_output=True, text=True, timeout=60)


def test_a_healthy_program_is_ok_and_both_runs_end_after_the_steps(tmp_path: Path) -> None:
    answer = canary(HEALTHY, tmp_path, PYTHONHASHSEED="7")
    document = answer.document
    assert (0, "ok") == (answer.code, document["decision"]), answer.out
    for name, autocast, scaled in (("float32", [], False), ("amp", ["float16"], True)):
        run = document["runs"][name]
        assert (True, autocast, scaled) == (run["stopped"], run["autocast"], run["scaled"])
        assert 60 <= run["steps"]
    assert ("float32", "float16") == (document["runs"]["float32"]["precision"], document["runs"]["amp"]["precision"])
    assert 0 < document["loss"]["start_share"] < 0.02
    assert abs(document["loss"]["share"]) < 0.05
    assert ["switched off in the float32 run: autocast (float16) and GradScaler"] == document["notes"]
    assert "not-as-asked" not in answer.err.replace("silenced verdicts: not-as-asked", "")
    assert 2 == answer.err.count("nothing wrong was found") + answer.err.count("nothing else wrong was found")
    report = json.loads(ammeter("report", document["runs"]["float32"]["folder"], "--json").stdout)
    assert [] == report["findings"]


def test_a_program_that_overflows_in_float16_differs(tmp_path: Path) -> None:
    answer = canary(OVERFLOWS, tmp_path, steps=150)
    document = answer.document
    assert (1, "differs") == (answer.code, document["decision"]), answer.out
    step = document["loss"]["first_nonfinite"]
    assert 0 < step < 150
    assert document["reasons"][0] == f"the loss is not finite at step {step}, and finite there in float32"


def test_a_program_without_autocast_cannot_be_compared_and_the_text_says_so(tmp_path: Path) -> None:
    answer = canary(PLAIN, tmp_path, steps=100, form=())
    assert 2 == answer.code
    assert "decision: not comparable\n" in answer.out
    assert "the command uses no autocast and no GradScaler, so both runs compute the same" in answer.out
    assert "float32 run: 60 steps, ended with exit code 0; journal " in answer.out


def test_half_weights_cannot_be_switched_and_the_text_says_so(tmp_path: Path) -> None:
    body = """
    model.bfloat16()
    for step in range(60):
        with torch.autocast("cpu", torch.bfloat16):
            output = model(inputs.bfloat16())
        update((output.float() - targets).square().mean())
    """
    answer = canary(body, tmp_path)
    assert (2, "not comparable") == (answer.code, answer.document["decision"])
    assert "the weights are bfloat16, such as after model.half()" in answer.document["reasons"][0]
    assert "run 2 of 2" not in answer.err


def test_a_cast_that_expects_autocast_ends_the_float32_run_and_its_error_is_named(tmp_path: Path) -> None:
    body = """
    for step in range(60):
        with torch.autocast("cpu", torch.bfloat16):
            output = model(inputs.bfloat16())
        update((output.float() - targets).square().mean())
    """
    answer = canary(body, tmp_path)
    assert (2, "not comparable") == (answer.code, answer.document["decision"])
    assert "the float32 run ended with exit code 1" in answer.document["reasons"][0]


def test_autocast_that_is_set_by_hand_is_found_in_the_float32_run(tmp_path: Path) -> None:
    body = """
    torch.set_autocast_dtype("cpu", torch.bfloat16)
    torch.set_autocast_enabled("cpu", True)
    for step in range(60):
        update((model(inputs).float() - targets).square().mean())
    """
    answer = canary(body, tmp_path)
    assert (2, "not comparable") == (answer.code, answer.document["decision"])
    assert "the float32 run has entered autocast in bfloat16" in answer.document["reasons"][0]


def test_a_collector_and_the_program_s_own_output_are_left_out(tmp_path: Path) -> None:
    url = "http://127.0.0.1:9"
    answer = canary("print('hello')\n" + PLAIN, tmp_path, AMMETER_URL=url)
    assert answer.document
    assert 2 == answer.err.count("hello")
    assert url not in answer.err


def test_no_run_of_ammeter_run_is_switched_off_by_a_variable_that_was_left_over(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(BEGIN + "print(torch.autocast('cpu', torch.float16)._enabled)\n" + PLAIN)
    words = [sys.executable, "-m", "ammeter", "run", "--dir", str(tmp_path / "ammeter")]
    for left_over in ("float32", "float32:1"):
        done = subprocess.run(
            [*words, "--", sys.executable, "script.py"],
            capture_output=True,
            text=True,
            cwd=tmp_path,
            env=os.environ | {"AMMETER_CANARY": left_over},
            timeout=60,
        )
        assert "True\n" == done.stdout, (left_over, done.stderr)


def test_a_canary_that_is_ended_ends_its_run(tmp_path: Path) -> None:
    body = HEALTHY.replace("for step", "print('pid', __import__('os').getpid(), file=sys.stderr, flush=True)\nfor step")
    (tmp_path / "script.py").write_text(BEGIN + body)
    words = [sys.executable, "-m", "ammeter", "canary", "--steps", "100000000", "--", sys.executable, "script.py"]
    with (tmp_path / "log").open("wb") as log:
        process = subprocess.Popen(
            words, stdout=log, stderr=log, cwd=tmp_path, env=os.environ | {"AMMETER_DIR": str(tmp_path / "ammeter")}
        )
    try:
        wait_for(lambda: "pid " in (tmp_path / "log").read_text(), "the program trains")
        pid = int((tmp_path / "log").read_text().split("pid ")[1].split()[0])
        process.send_signal(signal.SIGTERM)
        assert 128 + signal.SIGTERM == process.wait(90)
        wait_for(lambda: not Path(f"/proc/{pid}").exists(), "the program has ended")
    finally:
        process.kill()
        process.wait()
    assert "run 2 of 2" not in (tmp_path / "log").read_text()


@pytest.mark.parametrize("words", [["--steps", "0", "--", "x"], ["--steps", "many", "--", "x"], []])
def test_a_wrong_call_is_refused_with_the_remedy(words: list[str], tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "ammeter", "canary", *words], capture_output=True, text=True, timeout=60
    )
    assert 2 == done.returncode
    assert "use 200" in done.stderr or "use: ammeter canary -- python train.py" in done.stderr

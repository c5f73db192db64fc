"""A person asks a live run for more, and the training process answers."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tests.server.feeding import serving, wait_until

PROGRAM = """
import os, sys, time
import torch, ammeter
torch.set_num_threads(1)
model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
run = ammeter.watch(model, optimizer, name="asked", project="tests")
print(run.id, flush=True)
while not os.path.exists(sys.argv[1]):
    optimizer.zero_grad()
    with torch.autocast("cpu", dtype=torch.float16):
        loss = model(torch.randn(4, 8)).square().mean()
    loss.backward()
    optimizer.step()
    time.sleep(0.02)
run.close()
"""


def test_a_live_run_is_asked_and_its_answer_arrives(tmp_path: Path) -> None:
    stop, program = tmp_path / "stop", tmp_path / "program.py"
    program.write_text(PROGRAM)
    with serving(tmp_path) as client:
        settings = {"AMMETER_DIR": str(tmp_path / "journals"), "AMMETER_URL": str(client.base_url)}
        command = [sys.executable, str(program), str(stop)]
        with subprocess.Popen(command, env={**os.environ, **settings}, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            path = f"/api/v1/runs/{process.stdout.readline().strip()}"
            wait_until(lambda: client.get(path).json().get("last_step"))
            change = {"X-Ammeter-Request": "test"}
            answer = client.post(f"{path}/directives", params={"steps": 3}, headers=change)
            assert 200 == answer.status_code, answer.text
            events = f"{path}/events"
            found = wait_until(lambda: client.get(events, params={"name": "activation.peaks"}).json()["items"])
            assert client.get(f"{path}/directives").json()["items"][0]["delivered"] is not None
            assert {"0", "2"} & {str(peak["module"]) for peak in found[0]["data"]["modules"]}
            stop.touch()
            assert 0 == process.wait(60)

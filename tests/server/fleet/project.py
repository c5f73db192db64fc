"""A project with a baseline, a good run in bfloat16, a broken run, a lost one and one that was resumed."""

from __future__ import annotations

import time
from typing import Any

import httpx

from tests.server.feeding import STEP, Stream, break_down, train, wait_until

HOUR = 3600 * 10**9
PRICES = (("NVIDIA*[tier=spot]", 1.0), ("NVIDIA H200", 4.0))
SETTINGS = {"lr": 3e-4, "seed": 0}


def fill(client: httpx.Client, project: str = "demo") -> dict[str, Stream]:
    """Sends the runs and waits until all of them are judged."""
    fed = {
        "base": plain(new(client, project, "fp32", 50), 0.1, 3.0, hours=10),
        "amp": complete(new(client, project, "bf16", 30, {"owner": "anna", "tier": "spot"})),
        "broken": broken(new(client, project, "broken | *night*", 20, {"owner": "ben"})),
        "lost": lost(new(client, project, "lost run", 10)),
        "resumed": resumed(new(client, project, "resumed", 35)),
    }
    wait_until(lambda: all(run["state"] != "running" for run in client.get("/api/v1/runs").json()["items"]))
    wait_until(lambda: 2 <= len(client.get("/api/v1/incidents", params={"project": project}).json()["items"]))
    return fed


def new(client: httpx.Client, project: str, name: str, hours_ago: float, tags: dict[str, str] | None = None) -> Stream:
    begin = time.time_ns() - int(hours_ago * HOUR)
    return Stream(client, name=name, project=project, begin=begin, config=dict(SETTINGS), tags=tags or {})


def plain(
    stream: Stream, seconds: float, validation: float, hours: float, *, ends: bool = True, first_loss: float = 3.0
) -> Stream:
    """Two hundred steps, validated at every twentieth."""
    for step in range(200):
        row: dict[str, Any] = {
            "loss": first_loss - 1 + 1 / (step + 1),
            "applied": 1.0,
            "skipped": 0.0,
            "step_seconds": seconds,
        }
        stream.tell(step, row | ({"val_loss": validation} if step % 20 == 19 else {}))
    if ends:
        stream.bye(int(hours * HOUR) // STEP)
        stream.send()
    return stream


def complete(stream: Stream) -> Stream:
    """A run in bfloat16 with everything that production needs."""
    stream.say("autocast.entered", 0, device="cuda", dtype="bfloat16", grad=True)
    plain(stream, 0.05, 3.01, hours=20, ends=False)
    stream.say("checkpoint.saved", 199, path="/ckpt/weights.pt", steps=200, missing=["optimizer"])
    stream.say("checkpoint.saved", 199, path="/ckpt/last.pt", steps=200, missing=[])
    stream.say("checkpoint.verified", 199, path="/ckpt/last.pt", saved_step=199, outcome="passed")
    stream.say("kernels.profiled", 120, steps=5, kernels=[])
    stream.bye(20 * HOUR // STEP)
    stream.send()
    return stream


def broken(stream: Stream) -> Stream:
    train(stream, 0, 40)
    stream.say("kernel.fallback", 5, op="aten::mm", reason="fp32-input", flops_share=0.31)
    break_down(stream, 41, 60)
    stream.bye(HOUR // STEP, "exception")
    stream.send()
    return stream


def lost(stream: Stream) -> Stream:
    train(stream, 0, 60)
    stream.bye(61, "lost")
    stream.send()
    return stream


def resumed(stream: Stream) -> Stream:
    """Fails at step 99, is resumed from the checkpoint of step 60, and ends well at step 140."""
    train(stream, 0, 99)
    stream.say("checkpoint.saved", 59, path="ckpt.pt", steps=60, missing=["optimizer"])
    stream.bye(HOUR // STEP, "exception")
    stream.send()
    again = Stream(
        stream.client,
        run=stream.run,
        name=stream.name,
        project=stream.project,
        begin=stream.begin + HOUR + 60 * 10**9,
        config=dict(SETTINGS),
        tags={},
    )
    again.say("checkpoint.restored", 0, path="ckpt.pt", fits=True)
    train(again, 0, 80)
    again.bye(HOUR // STEP)
    again.send()
    return stream

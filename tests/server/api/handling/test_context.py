"""What a person needs to act on an incident: weights, checkpoint, cost, owner and place. On both databases."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import httpx
import pytest

from ammeter_server.config import prices
from tests.server.databases import postgresql
from tests.server.feeding import STEP, Stream, break_down, serving, train, wait_until

COMMIT = "4f2c9e7a1b3d5f60718293a4b5c6d7e8f9012345"
SETTINGS: dict[str, Any] = {
    "cost_per_hour": prices.read("*H200*=3.50"),
    "grafana_url": "https://grafana.example/",
    "alertmanager_page": "https://alerts.example",
    "log_url": "https://logs.example/q?host={host}&job={job}",
}
ENVIRONMENT = {
    "torch": "2.13.0",
    "device": "NVIDIA H200",
    "git_commit": COMMIT,
    "driver": "570.86.15",
    "job": "48213",
    "command": "python train.py --lr 3e-4 --resume_from_checkpoint old.pt",
}


@pytest.fixture(params=["sqlite", "postgresql"])
def client(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[httpx.Client]:
    with (
        postgresql() if request.param == "postgresql" else nullcontext("") as url,
        serving(tmp_path, url, **SETTINGS) as client,
    ):
        yield client


def save(stream: Stream, step: int, path: str, missing: list[str]) -> None:
    contents = {"weights": {"float32": 1000}, "optimizer": True, "scaler": True, "whole": True}
    stream.say("checkpoint.saved", step, path=path, seconds=0.1, steps=step + 1, contents=contents, missing=missing)


def broken(client: httpx.Client, **named: Any) -> Stream:
    stream = Stream(client, begin=time.time_ns() - 90 * STEP, environment=ENVIRONMENT, tags={"owner": "lena"}, **named)
    train(stream, 0, 40)
    save(stream, 10, "/ckpt/10.pt", [])
    save(stream, 20, "/ckpt/last.pt", [])
    save(stream, 30, "/ckpt/30.pt", ["scaler"])
    break_down(stream, 41, 49)
    save(stream, 49, "/ckpt/last.pt", [])
    return stream


def incident(client: httpx.Client, stream: Stream, verdict: str = "nonfinite-gradient") -> str:
    path = f"/api/v1/runs/{stream.run}/incidents"
    found = wait_until(lambda: client.get(path, params={"verdict": verdict}).json()["items"])
    return str(found[0]["id"])


def context_of(client: httpx.Client, incident: str) -> dict[str, Any]:
    answer = client.get(f"/api/v1/incidents/{incident}/context")
    assert 200 == answer.status_code, answer.text
    context: dict[str, Any] = answer.json()
    return context


def test_the_context_names_owner_place_cost_and_the_last_good_checkpoint(client: httpx.Client) -> None:
    stream = broken(client, name="night")
    stream.send()
    context = context_of(client, incident(client, stream))
    assert {"state": "safe", "step": 49} == context["weights"]
    assert context["now"].startswith("Stop the run: ")
    assert "continue from the checkpoint of step 49" in context["now"]
    saved = context["checkpoint"]
    assert ("/ckpt/last.pt", 49, [], False) == tuple(saved[key] for key in ("path", "step", "missing", "verified"))
    assert "python train.py --lr 3e-4 --resume_from_checkpoint /ckpt/last.pt" == saved["resume"]
    assert 3.5 == context["dollars_per_hour"]
    assert ("lena", "node-1", "48213", COMMIT) == tuple(context[key] for key in ("owner", "host", "job", "commit"))
    links = context["links"]
    assert "https://logs.example/q?host=node-1&job=48213" == links["log"]
    assert f"https://grafana.example/d/ammeter-debug?var-project=demo&var-run={stream.run}" == links["board"]
    run = client.get(f"/api/v1/runs/{stream.run}").json()
    assert {"log": links["log"], "board": links["board"]} == run["links"]
    assert links["silence"].startswith(
        "https://alerts.example/#/silences/new?filter=%7Balertname%3D%22AmmeterNonfinite"
    )
    listed = client.get("/api/v1/incidents", params={"verdict": "nonfinite-gradient"}).json()["items"]
    assert [links] == [item["links"] for item in listed]


def test_poisoned_weights_lead_back_to_the_newest_checkpoint_from_before_the_fault(client: httpx.Client) -> None:
    stream = broken(client)
    stream.say("weights.nonfinite", 49, tensors=["head.weight"], count=1, last_finite=39)
    stream.send()
    context = context_of(client, incident(client, stream))
    assert "poisoned" == context["weights"]["state"]
    saved = context["checkpoint"]
    assert ("/ckpt/30.pt", 30, ["scaler"]) == tuple(saved[key] for key in ("path", "step", "missing"))
    assert "go back to the checkpoint of step 30" in context["now"]


def test_finite_weights_of_a_run_that_diverged_are_damaged(client: httpx.Client) -> None:
    stream = Stream(client, begin=time.time_ns() - 90 * STEP)
    train(stream, 0, 40)
    for step in range(41, 60):
        stream.tell(step, {"loss": 5000.0, "grad_norm": 900.0, "scale": 65536.0, "applied": 1.0, "skipped": 0.0})
    stream.send()
    assert "damaged" == context_of(client, incident(client, stream, "diverged"))["weights"]["state"]


def test_a_run_that_has_ended_burns_nothing(client: httpx.Client) -> None:
    stream = broken(client)
    stream.bye(49)
    stream.send()
    assert context_of(client, incident(client, stream))["dollars_per_hour"] is None


def test_weights_with_nan_are_poisoned(client: httpx.Client) -> None:
    stream = Stream(client, begin=time.time_ns() - 90 * STEP)
    train(stream, 0, 40)
    stream.say("weights.nonfinite", 40, tensors=["head.weight"], count=1, last_finite=30)
    stream.send()
    context = context_of(client, incident(client, stream, "nonfinite-weights"))
    assert "poisoned" == context["weights"]["state"]
    assert context["checkpoint"] is None
    assert "no checkpoint from before step 40 was recorded" in context["now"]


def test_weights_that_are_finite_again_are_not_called_poisoned(client: httpx.Client) -> None:
    stream = Stream(client, begin=time.time_ns() - 90 * STEP)
    train(stream, 0, 40)
    stream.say("weights.nonfinite", 40, tensors=["head.weight"], count=1, last_finite=30)
    row = {"loss": 1.4, "grad_norm": 1.0, "scale": 65536.0, "applied": 1.0, "skipped": 0.0, "weights_nonfinite": 0.0}
    for step in range(41, 70):
        stream.tell(step, row)
    stream.send()
    path = f"/api/v1/runs/{stream.run}/incidents"
    asked = {"verdict": "nonfinite-weights", "state": "closed"}
    (closed,) = wait_until(lambda: client.get(path, params=asked).json()["items"])
    assert "recovered" == closed["closed_reason"]
    context = context_of(client, closed["id"])
    assert context["weights"]["state"] in ("safe", "finite")
    assert context["now"].startswith("Nothing to do for this run: it has recovered.")


def test_an_applied_step_with_nan_is_not_called_safe(client: httpx.Client) -> None:
    stream = broken(client)
    row = {"scale": 256.0, "applied": 1.0, "skipped": 0.0, "loss": 1.4, "grad_norm": float("nan"), "step_seconds": 0.1}
    stream.tell(50, row)
    stream.send()
    assert {"state": "unknown", "step": None} == context_of(client, incident(client, stream))["weights"]


def test_a_step_without_a_norm_is_not_called_safe(client: httpx.Client) -> None:
    stream = broken(client)
    stream.tell(50, {"scale": 256.0, "applied": 1.0, "skipped": 0.0, "loss": 1.4, "step_seconds": 0.1})
    stream.send()
    assert "unknown" == context_of(client, incident(client, stream))["weights"]["state"]


def test_a_finite_reading_of_weights_is_reported_with_its_step(client: httpx.Client) -> None:
    stream = broken(client)
    stream.tell(50, {"scale": 256.0, "applied": 1.0, "skipped": 0.0, "loss": 1.4, "weights_nonfinite": 0.0})
    stream.send()
    assert {"state": "finite", "step": 50} == context_of(client, incident(client, stream))["weights"]


def test_an_unknown_incident_has_no_context(client: httpx.Client) -> None:
    for resource in ("context", "reach"):
        assert 404 == client.get(f"/api/v1/incidents/x.y.1/{resource}").status_code


def test_reach_counts_other_runs_that_share_verdict_host_commit_or_driver(client: httpx.Client) -> None:
    stream = broken(client)
    stream.send()
    first = incident(client, stream)
    reach = client.get(f"/api/v1/incidents/{first}/reach").json()
    assert {"verdict": 0, "host": 0, "commit": 0, "driver": 0} == {item["by"]: item["runs"] for item in reach["items"]}
    second = broken(client, name="twin", project="other")
    second.send()
    incident(client, second)
    before = Stream(client, environment=ENVIRONMENT)  # ended long before the incident
    train(before, 0, 3)
    before.bye(3)
    before.send()
    wait_until(lambda: "ended" == client.get(f"/api/v1/runs/{before.run}").json()["state"])
    items = {item["by"]: item for item in client.get(f"/api/v1/incidents/{first}/reach").json()["items"]}
    assert ["verdict", "host", "commit", "driver"] == list(items)
    assert ["node-1", COMMIT, "570.86.15"] == [items[by]["value"] for by in ("host", "commit", "driver")]
    assert [second.run] == [run["run"] for run in items["verdict"]["items"]]
    assert second.run in [run["run"] for run in items["commit"]["items"]]
    assert all(item["broken"] == 1 for item in items.values())
    only_here = client.get(f"/api/v1/incidents/{first}/reach", params={"project": "demo"}).json()["items"]
    assert 0 == only_here[0]["runs"]


def test_steps_that_used_wrong_gradients_leave_finite_weights_in_doubt(client: httpx.Client) -> None:
    stream = Stream(client, begin=time.time_ns() - 90 * STEP)
    train(stream, 0, 40)
    stream.say("usage.mixed_scale", 41, optimizer="SGD", caller="train.py:7", scale=65536.0)
    train(stream, 41, 60)
    stream.send()
    context = context_of(client, incident(client, stream, "mixed-scale-gradients"))
    assert "doubtful" == context["weights"]["state"]
    assert "no checkpoint from before step 41" in context["now"]

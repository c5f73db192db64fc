"""What each rank of a distributed test does: trains, bare and watched, and writes what came out.

`python -m tests.agent.distributed_ranks FOLDER PLAN`, started by tests/ranks.py, leaves FOLDER/<rank>.json.
"""

from __future__ import annotations

import contextlib
import gc
import hashlib
import json
import logging
import os
import sys
import uuid
import weakref
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
import torch.distributed as distributed
from torch.distributed.fsdp import FullyShardedDataParallel
from torch.nn.parallel import DistributedDataParallel

import ammeter
from tests.agent.distributed_plans import DTYPES, PLANS, Model, Plan, ddp

STEPS = 6
BAD_STEP = 3
"""At this step the loss of the last rank is infinite, where a run has a scaler."""


def main(folder: Path, plans: str) -> None:
    lines = logged()
    found: dict[str, Any] = {"early": early(folder)}
    distributed.init_process_group("gloo")
    rank, first = distributed.get_rank(), PLANS[plans][0]
    for plan in PLANS[plans]:
        found[plan.name] = {"bare": train(plan), "watched": train(plan, watched=True), "whole": whole_norms(plan)}
    found["agreed"] = train(replace(first, name="agreed"), watched=True, agree=True)["run"]
    found["one is off"] = train(replace(first, name="one is off"), watched=True, disabled=rank == 1)["run"]
    found["uneven"] = [uneven(watched) for watched in (False, True)]
    found["left"] = [outlives(close_first) for close_first in (True, False)]
    found["logged"] = lines
    (folder / f"{rank}.json").write_text(json.dumps(found))
    over_the_end()


def logged() -> list[str]:
    """What Ammeter says in this process's log from now on."""
    lines: list[str] = []

    class Listener(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            lines.append(record.getMessage())

    logging.getLogger("ammeter").addHandler(Listener())
    return lines


def early(folder: Path) -> list[str]:
    """The runs of watch() before there is a process group, without and with what a launcher may say."""
    found = []
    for job in ("none", "job-17"):
        os.environ["TORCHELASTIC_RUN_ID"] = job
        model = torch.nn.Linear(2, 2)
        for _ in range(2):
            run = ammeter.watch(model, torch.optim.SGD(model.parameters()), dir=folder / "early")
            found.append(run.id)
            run.close()
    return found


def train(plan: Plan, *, watched: bool = False, agree: bool = False, disabled: bool = False) -> dict[str, Any]:
    """Trains as planned; what is left, as text that can be compared, and what torch.distributed was asked to do."""
    torch.manual_seed(7)
    model = plan.wrap(Model(0.1 if plan.precision in DTYPES else 0.0))
    torch.manual_seed(distributed.get_rank())
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    scaler = plan.scaler("cpu", init_scale=2.0**10, growth_interval=2) if plan.scaler else None
    before = len(collectives())
    with environment(plan.name, agree, disabled):
        options: dict[str, Any] = {"name": plan.name, "preset": plan.preset, "replay": plan.replay}
        run = ammeter.watch(model, optimizer, scaler, **options) if watched else None
    found: dict[str, Any] = {"losses": [], "clips": [], "scales": []}
    for step in range(STEPS):
        optimizer.zero_grad()
        for part in range(plan.accumulate):
            last = part == plan.accumulate - 1
            with (
                contextlib.nullcontext() if last or not isinstance(model, DistributedDataParallel) else model.no_sync()
            ):
                loss = loss_of(model, plan, step, distributed.get_rank(), part) / plan.accumulate
                if scaler and step == BAD_STEP and is_last_rank():
                    loss = loss * torch.inf
                (scaler.scale(loss) if scaler else loss).backward()  # type: ignore[no-untyped-call]
        found["clips"].append(update(model, optimizer, scaler, plan.clip))
        found["losses"].append(float(loss.detach()))
        found["scales"].append(scaler.get_scale() if scaler else None)
    if run:
        run.close()
    done = collectives()[before:]
    return found | {"state": digest(model, optimizer, scaler), "collectives": done, "run": run.id if run else ""}


def is_last_rank() -> bool:
    return distributed.get_rank() == distributed.get_world_size() - 1


@contextlib.contextmanager
def environment(name: str, agree: bool, disabled: bool) -> Iterator[None]:
    """Each training is a run of its own, unless the ranks are to agree on it."""
    data = {"AMMETER_DISABLE": "1" if disabled else "", "TORCHELASTIC_RUN_ID": "none"}
    if not agree:
        data["AMMETER_RUN_ID"] = str(run_id(name))
    os.environ.update(data)
    yield
    for variable in data:
        del os.environ[variable]


def run_id(name: str) -> uuid.UUID:
    return uuid.uuid5(uuid.NAMESPACE_OID, name)


def loss_of(model: torch.nn.Module, plan: Plan, step: int, rank: int, part: int = 0) -> torch.Tensor:
    dice = torch.Generator().manual_seed(1000 * step + 10 * (rank // plan.alike) + part)
    x, y = torch.randn(8, 12, generator=dice), torch.randint(3, (8,), generator=dice)
    dtype = DTYPES.get(plan.precision)
    with torch.autocast("cpu", dtype or torch.bfloat16, enabled=dtype is not None):
        return torch.nn.functional.cross_entropy(model(x).float(), y)


def update(
    model: torch.nn.Module, optimizer: torch.optim.Optimizer, scaler: torch.amp.GradScaler | None, clip: bool
) -> float:
    if scaler:
        scaler.unscale_(optimizer)
    norm: Any = 0.0
    if isinstance(model, FullyShardedDataParallel):
        norm = model.clip_grad_norm_(1.0)
    elif clip:
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    if scaler:
        scaler.step(optimizer)
        scaler.update()
    else:
        optimizer.step()
    return float(norm.full_tensor() if hasattr(norm, "full_tensor") else norm)


def whole_norms(plan: Plan) -> dict[str, float]:
    """The norm of each gradient of the first step, of the model in one piece and all ranks' samples."""
    torch.manual_seed(7)
    model = Model()
    for rank in range(distributed.get_world_size()):
        (loss_of(model, plan, 0, rank) / distributed.get_world_size()).backward()  # type: ignore[no-untyped-call]
    return {
        name: float(parameter.grad.norm()) for name, parameter in model.named_parameters() if parameter.grad is not None
    }


def collectives() -> list[str]:
    """Every operation between ranks so far, as torch's flight recorder has them."""
    trace = json.loads(torch._C._distributed_c10d._dump_fr_trace_json())  # type: ignore[attr-defined]
    return [f"{entry['profiling_name']} {entry['input_sizes']}" for entry in trace.get("entries", [])]


def digest(model: torch.nn.Module, optimizer: torch.optim.Optimizer, scaler: Any) -> str:
    """Of this rank's weights, optimizer state, scaler and random numbers, to the last bit."""
    tensors = [*model.parameters(), *(tensor for slots in optimizer.state.values() for tensor in slots.values())]
    seen = hashlib.sha256(repr(scaler.state_dict() if scaler else "").encode())
    for each in (*tensors, torch.get_rng_state()):
        local = getattr(each, "_local_tensor", each).detach().contiguous()
        seen.update(repr((local.shape, local.dtype)).encode() + bytes(local.view(-1).view(torch.uint8).tolist()))
    return seen.hexdigest()


def uneven(watched: bool) -> str:
    """Ranks that have fewer samples than others wait in join() for these; what the training came to."""
    torch.manual_seed(7)
    model = DistributedDataParallel(Model())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with environment("uneven", agree=False, disabled=not watched):
        run = ammeter.watch(model, optimizer, name="uneven")
    with model.join():
        for step in range(2 + distributed.get_rank()):
            optimizer.zero_grad()
            loss_of(model, Plan("uneven", ddp), step, distributed.get_rank()).backward()  # type: ignore[no-untyped-call]
            optimizer.step()
    run.close()
    return digest(model, optimizer, None)


def outlives(close_first: bool) -> bool:
    """Whether the wrapper of a model is still there when its program has let it go, while it is watched."""
    model = DistributedDataParallel(Model())
    with environment("left", agree=False, disabled=False):
        run = ammeter.watch(model, torch.optim.SGD(model.parameters(), lr=0.1))
    loss_of(model, Plan("left", ddp), 0, 0).backward()  # type: ignore[no-untyped-call]
    ref = weakref.ref(model)
    if close_first:
        run.close()
    del model
    gc.collect()
    run.close()
    return ref() is not None


def over_the_end() -> None:
    """Runs that the program closes behind destroy_process_group(), and not at all."""
    runs = []
    for name in ("closed behind", "never closed"):
        model = DistributedDataParallel(Model())
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        with environment(name, agree=False, disabled=False):
            runs.append(ammeter.watch(model, optimizer, name=name))
        loss_of(model, Plan(name, ddp), 0, 0).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    del model
    gc.collect()
    distributed.barrier()
    distributed.destroy_process_group()
    runs[0].close()


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])

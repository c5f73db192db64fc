from __future__ import annotations

import socket
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch.distributed
from torch._C import _distributed_c10d as stores_of_torch

from ammeter.environment import identity
from ammeter.redaction.redactor import Redactor
from ammeter.wire.frames import Hello
from tests.agent import programs

ID = "0189f7ea-ae2c-7d3b-8a4a-1f0f0c0b0a09"


def test_a_uuid_that_only_collectors_give_is_a_name_like_any_other() -> None:
    said = "ffffffff-ffff-ffff-ffff-ffffffffffff"
    run, name = identity.run_id("books", {"AMMETER_RUN_ID": said})
    assert (said, uuid.RFC_4122) == (name, uuid.UUID(run).variant)


def test_a_uuid_in_ammeter_run_id_is_the_run_in_one_spelling() -> None:
    for said in (ID, ID.upper(), "{" + ID + "}", ID.replace("-", "")):
        assert (ID, "") == identity.run_id("p", {"AMMETER_RUN_ID": said})


def test_a_name_in_ammeter_run_id_becomes_the_same_uuid_for_every_rank_of_the_job() -> None:
    data = {"AMMETER_RUN_ID": "gpt small", "SLURM_JOB_ID": "17"}
    run, name = identity.run_id("p", data)
    assert "gpt small" == name
    assert (5, run) == (uuid.UUID(run).version, str(uuid.UUID(run)))
    assert (run, name) == identity.run_id("p", {**data, "RANK": "3"})


def test_a_name_means_another_run_in_another_project_or_job() -> None:
    environments = [
        ("p", {"AMMETER_RUN_ID": "gpt"}),
        ("q", {"AMMETER_RUN_ID": "gpt"}),
        ("p", {"AMMETER_RUN_ID": "bert"}),
        ("p", {"AMMETER_RUN_ID": "gpt", "SLURM_JOB_ID": "17"}),
        ("p", {"AMMETER_RUN_ID": "gpt", "SLURM_JOB_ID": "18"}),
        ("p", {"AMMETER_RUN_ID": "gpt", "TORCHELASTIC_RUN_ID": "18x"}),
    ]
    assert len(environments) == len({identity.run_id(project, said)[0] for project, said in environments})


def test_the_parts_a_name_is_hashed_from_do_not_run_together() -> None:
    assert identity.run_id("ab", {"AMMETER_RUN_ID": "c"}) != identity.run_id("a", {"AMMETER_RUN_ID": "bc"})


def test_torchruns_id_is_the_run_unless_it_is_none() -> None:
    elastic = identity.run_id("p", {"TORCHELASTIC_RUN_ID": "job-1"})
    assert elastic == identity.run_id("p", {"TORCHELASTIC_RUN_ID": "job-1"})
    assert "" == elastic[1]
    unnamed = {identity.run_id("p", {"TORCHELASTIC_RUN_ID": "none"})[0] for _ in range(3)}
    assert 3 == len(unnamed)
    assert ID == identity.run_id("p", {"TORCHELASTIC_RUN_ID": "job-1", "AMMETER_RUN_ID": ID})[0]


def test_alone_every_start_is_another_run() -> None:
    assert identity.run_id("p", {}) != identity.run_id("p", {})


def test_rank_and_world_size_are_the_launchers_until_the_process_group_is_up() -> None:
    assert (0, 1) == identity.rank({})
    assert (3, 8) == identity.rank({"RANK": "3", "WORLD_SIZE": "8"})
    assert (0, 1) == identity.rank({"RANK": "", "WORLD_SIZE": ""})


def test_the_host_is_named_in_lower_case() -> None:
    assert socket.gethostname().lower() == identity.host()


@pytest.fixture(params=["tcp", "file", "hash"])
def process_group(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[None]:
    """A group of this process alone, over each kind of store."""
    stores = {
        "tcp": lambda: stores_of_torch.TCPStore("127.0.0.1", 0, 1, True, wait_for_workers=False),
        "file": lambda: stores_of_torch.FileStore(str(tmp_path / "store"), 1),
        "hash": stores_of_torch.HashStore,
    }
    torch.distributed.init_process_group("gloo", store=stores[request.param](), rank=0, world_size=1)
    yield
    torch.distributed.destroy_process_group()


@pytest.mark.usefixtures("process_group")
def test_whoever_asks_first_decides_for_all_who_share_the_store() -> None:
    first, name = identity.run_id("p", {"TORCHELASTIC_RUN_ID": "job-1"})
    assert ("", first) == (name, str(uuid.UUID(first)))
    assert first == identity.run_id("q", {})[0]
    assert (0, 1) == identity.rank({"RANK": "5", "WORLD_SIZE": "9"})
    assert ID == identity.run_id("p", {"AMMETER_RUN_ID": ID})[0]


@pytest.mark.usefixtures("process_group")
def test_an_id_that_the_launcher_made_up_is_the_run_whatever_is_in_the_store() -> None:
    agreed = identity.run_id("p", {})[0]
    assert (ID, "") == identity.run_id("p", {"TORCHELASTIC_RUN_ID": ID.upper()})
    assert (agreed, "") == identity.run_id("p", {"TORCHELASTIC_RUN_ID": "100"})


def test_the_job_of_a_scheduler_is_recorded_under_its_id() -> None:
    assert {"job": "4711"} == identity.job({"SLURM_JOB_ID": "4711"})
    assert {"job": "12.server"} == identity.job({"SLURM_JOB_ID": "", "PBS_JOBID": "12.server"})
    assert {} == identity.job({"TORCHELASTIC_RUN_ID": "typed"})


def test_how_often_the_launcher_starts_again_is_told_where_it_does() -> None:
    assert [{}, {}, {"max_restarts": "3"}] == [
        identity.launcher(variables)
        for variables in ({}, {"TORCHELASTIC_MAX_RESTARTS": "0"}, {"TORCHELASTIC_MAX_RESTARTS": "3"})
    ]


def test_the_trace_that_started_the_process_is_recorded_if_it_is_one() -> None:
    parent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    assert [{}, {}, {"traceparent": parent}] == [
        identity.trace(variables) for variables in ({}, {"TRACEPARENT": f"{parent}; rm -rf"}, {"TRACEPARENT": parent})
    ]
    assert parent == Redactor(remembers=False).fact("traceparent", parent)


RANK = """
import pathlib, time

torch.distributed.init_process_group("gloo")
seen = pathlib.Path(os.environ["SEEN"])
deadline = time.monotonic() + 60
while torch.distributed.get_rank() == 1 and not seen.exists() and time.monotonic() < deadline:
    time.sleep(0.01)
run = ammeter.watch(model, optimizer)
seen.touch()
step()
run.close()
print(run.id)
torch.distributed.barrier()
torch.distributed.destroy_process_group()
"""


def test_two_ranks_agree_on_one_run_although_the_first_does_not_wait_for_the_second(tmp_path: Path) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    environment: Any = {
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": port,
        "WORLD_SIZE": "2",
        "SEEN": str(tmp_path / "seen"),
    }
    begin = programs.BEGIN.replace("run = ammeter.watch(model, optimizer)\n", "")
    started = [
        programs.start(RANK, tmp_path / str(rank), begin=begin, RANK=str(rank), **environment) for rank in range(2)
    ]
    ended = [program.end() for program in started]
    assert [0, 0] == [program.code for program in ended], [program.err for program in ended]
    assert 1 == len({program.out for program in ended})
    hellos = [next(frame for frame in program.stream() if isinstance(frame, Hello)) for program in ended]
    assert [(0, 2), (1, 2)] == [(hello.rank, hello.world_size) for hello in hellos]
    assert 1 == len({hello.run for hello in hellos})
    assert 2 == len({hello.stream for hello in hellos})
    assert [[0], [0]] == [programs.steps(program.stream()) for program in ended]

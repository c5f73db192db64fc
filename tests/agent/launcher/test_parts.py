"""What `ammeter run` makes of a command line, which run it belongs to, and whether the kernel killed for memory."""

from __future__ import annotations

import uuid
from pathlib import Path

import pytest

from ammeter.environment.cgroups import oom_kills
from ammeter.launcher.command import python_options, runnable, value_of
from ammeter.launcher.run_identity import determine_run


@pytest.mark.parametrize(
    ("line", "letter"),
    [
        ("python -I train.py", "I"),
        ("python3.11 -u -S train.py", "S"),
        ("/usr/bin/python3 -uE train.py", "E"),
        ("python -Im pkg.train", "I"),
        ("python -W ignore -I train.py", "I"),
        ("python -X dev -I train.py", "I"),
        ("python -Wignore -I train.py", "I"),
    ],
)
def test_an_option_that_keeps_us_out_is_seen(line: str, letter: str) -> None:
    assert letter in "".join(python_options(line.split()))


@pytest.mark.parametrize(
    "line",
    [
        "python train.py -I",
        "python -m train -S",
        "python -c pass -E",
        "python -u -",
        "torchrun -I train.py",
        "python",
        "bash -I x",
        "python -W S train.py",
    ],
)
def test_what_the_script_gets_is_not_pythons(line: str) -> None:
    assert set("ISE").isdisjoint("".join(python_options(line.split())))


def test_a_script_that_is_no_program_is_given_to_this_python(tmp_path: Path) -> None:
    import sys

    script = tmp_path / "train.py"
    script.write_text("")
    assert [sys.executable, str(script), "--lr", "1"] == runnable([str(script), "--lr", "1"])
    script.chmod(0o755)
    assert [str(script)] == runnable([str(script)])
    assert ["nowhere.py"] == runnable(["nowhere.py"])


@pytest.mark.parametrize("line", ["torchrun --rdzv-id 7 x", "torchrun --rdzv_id=7 x"])
def test_an_options_value_is_found_in_either_form(line: str) -> None:
    assert "7" == value_of(line.split(), "--rdzv-id", "--rdzv_id")
    assert value_of(line.split(), "--nnodes") is None


def test_each_command_is_a_run_of_its_own() -> None:
    (one, _), (other, _) = (determine_run({}, ["python", "train.py"]) for _ in range(2))
    assert one is not None
    assert str(uuid.UUID(one)) == one != other


def test_a_run_that_was_named_keeps_its_id_or_gets_one_from_its_name() -> None:
    said = "7d444840-9dc0-11d1-b245-5ffdce74fad2"
    assert (said, "") == determine_run({"AMMETER_RUN_ID": said}, ["true"])
    first, again = (determine_run({"AMMETER_RUN_ID": "sweep 7"}, ["true"]) for _ in range(2))
    assert first == again
    assert "sweep 7" == first[1]
    assert first[0] != determine_run({"AMMETER_RUN_ID": "sweep 7", "AMMETER_PROJECT": "vision"}, ["true"])[0]


def test_the_tasks_of_a_slurm_step_are_one_run_and_its_steps_are_several() -> None:
    tasks = [{"SLURM_JOB_ID": "12", "SLURM_STEP_ID": "0", "SLURM_NTASKS": "2", "SLURM_PROCID": str(n)} for n in (0, 1)]
    one, other = (determine_run(task, ["python", "train.py"]) for task in tasks)
    assert one == other
    assert one[0] != determine_run({**tasks[0], "SLURM_STEP_ID": "1"}, ["python", "train.py"])[0]


def test_nodes_that_share_a_rendezvous_are_one_run() -> None:
    line = ["torchrun", "--nnodes", "2", "--rdzv-id", "job-7", "--rdzv-backend", "c10d", "train.py"]
    assert determine_run({}, line) == determine_run({}, line)
    assert determine_run({}, line)[0] is not None


@pytest.mark.parametrize(
    ("environment", "line"),
    [
        ({}, "torchrun --nnodes 2 train.py"),
        ({}, "accelerate launch --num_machines=4 train.py"),
        ({"OMPI_COMM_WORLD_SIZE": "8"}, "python train.py"),
        ({"WORLD_SIZE": "2"}, "python train.py"),
    ],
)
def test_where_others_cannot_know_the_id_the_ranks_agree(environment: dict[str, str], line: str) -> None:
    assert (None, "") == determine_run(environment, line.split())


def test_one_node_is_not_several() -> None:
    assert determine_run({"WORLD_SIZE": "1"}, ["torchrun", "--nnodes", "1:1", "train.py"])[0] is not None


def test_the_kernels_count_is_read_from_either_version_of_control_groups(tmp_path: Path) -> None:
    inner = tmp_path / "job" / "step"
    inner.mkdir(parents=True)
    (inner / "memory.events").write_text("low 0\nhigh 0\nmax 12\noom 3\noom_kill 2\noom_group_kill 0\n")
    assert 2 == oom_kills("0::/job/step\n", tmp_path)
    old = tmp_path / "memory" / "job"
    old.mkdir(parents=True)
    (old / "memory.oom_control").write_text("oom_kill_disable 0\nunder_oom 0\noom_kill 5\n")
    assert 5 == oom_kills("12:pids:/job\n9:memory:/job\n1:name=systemd:/x\n", tmp_path)


def test_in_a_container_the_group_is_at_the_root(tmp_path: Path) -> None:
    (tmp_path / "memory.events").write_text("oom_kill 7\n")
    assert 7 == oom_kills("0::/../../elsewhere\n", tmp_path)


def test_where_nobody_counts_the_count_is_unknown(tmp_path: Path) -> None:
    assert oom_kills("0::/\n", tmp_path) is None
    (tmp_path / "memory.events").write_text("oom_kill many\n")
    assert oom_kills("0::/\n", tmp_path) is None

"""A Slurm cluster of one node on this machine: munged, slurmctld and slurmd, with all state in one folder."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import tempfile
from pathlib import Path

from tests.e2e.processes import free_port, wait_for
from tests.parts import missing

DEADLINE_SECONDS = 60.0

CONFIG = """
ClusterName=test
SlurmctldHost={host}(127.0.0.1)
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket,cred_expire=5
SlurmctldPort={controller_port}
SlurmdPort={node_port}
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.pid
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
MpiDefault=none
ReturnToService=2
KillWait=10
SchedulerParameters=batch_sched_delay=1,sched_interval=1
MailProg=/bin/true
NodeName={host} NodeAddr=127.0.0.1 CPUs=2 State=UNKNOWN
PartitionName=main Nodes=ALL Default=YES MaxTime=INFINITE State=UP
"""
"""linuxproc and task/none need no control groups, which a container has not. A requeued job waits for cred_expire."""


class Slurm:
    """The cluster. Only root can run it, because slurmd starts jobs as their users."""

    def __init__(self) -> None:
        if os.geteuid() != 0:
            missing("a Slurm cluster is started by root")
        programs = {name: _program(name) for name in ("munged", "slurmctld", "slurmd")}
        self.folder = Path(tempfile.mkdtemp(prefix="slurm-", dir="/tmp"))  # a socket's path has at most 107 characters
        self.folder.chmod(0o755)
        self._processes: list[subprocess.Popen[bytes]] = []
        for name in ("state", "spool"):
            (self.folder / name).mkdir()
        ports = {"controller_port": free_port(), "node_port": free_port()}
        host = socket.gethostname().split(".")[0]
        (self.folder / "slurm.conf").write_text(CONFIG.format(folder=self.folder, host=host, **ports))
        key = self.folder / "munge.key"
        key.write_bytes(os.urandom(1024))
        key.chmod(0o400)
        self.environment = {**os.environ, "SLURM_CONF": str(self.folder / "slurm.conf")}
        files = [f"--{kind}={self.folder}/munge.{end}" for kind, end in FILES_OF_MUNGE.items()]
        self._start([programs["munged"], "--foreground", "--force", *files])
        wait_for(lambda: (self.folder / "munge.socket").exists(), "munged is ready", self.log)
        self._start([programs["slurmctld"], "-D"])
        self._start([programs["slurmd"], "-D"])
        wait_for(lambda: self.call("sinfo", "-h", "-o", "%T") == "idle", "the node is idle", self.log)

    def call(self, *words: str) -> str:
        """Runs a program of Slurm; returns its output, or its error if it failed."""
        ran = subprocess.run(words, env=self.environment, capture_output=True, text=True, timeout=DEADLINE_SECONDS)
        return (ran.stdout if ran.returncode == 0 else ran.stderr).strip()

    def submit(self, *words: str, folder: Path, **environment: str) -> str:
        """Submits a job; returns its id."""
        ran = subprocess.run(
            ["sbatch", "--parsable", *words],
            env={**self.environment, **environment},
            cwd=folder,
            capture_output=True,
            text=True,
            timeout=DEADLINE_SECONDS,
        )
        assert 0 == ran.returncode, ran.stderr
        return ran.stdout.strip()

    def state(self, job: str) -> str:
        return self.call("squeue", "-h", "-o", "%T", "-j", job)

    def log(self) -> str:
        return "\n".join(path.read_text()[-2000:] for path in sorted(self.folder.glob("*.log")))

    def stop(self) -> None:
        self.call("scancel", "--user", "root")
        wait_for(lambda: not self.call("squeue", "-h"), "no job is left", self.log)
        for process in reversed(self._processes):
            process.terminate()
        for process in self._processes:
            try:
                process.wait(15)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        shutil.rmtree(self.folder, ignore_errors=True)

    def _start(self, command: list[str]) -> None:
        with (self.folder / f"{Path(command[0]).name}.log").open("ab") as log:
            self._processes.append(
                subprocess.Popen(command, env=self.environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
            )


FILES_OF_MUNGE = {
    "key-file": "key",
    "socket": "socket",
    "pid-file": "pid",
    "log-file": "munged-log",
    "seed-file": "seed",
}
"""Option of munged -> the end of the file's name."""


def _program(name: str) -> str:
    """The path of a program, which Debian keeps where only root's PATH leads."""
    found = shutil.which(name) or shutil.which(name, path="/usr/sbin:/sbin")
    return found or missing(f"{name} is not installed; install slurm-wlm and munge to run this test")

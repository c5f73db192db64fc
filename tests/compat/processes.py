"""Processes of either version: a collector, and a training program."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import urllib.request
from pathlib import Path
from typing import Any

from prometheus_client.parser import text_string_to_metric_families

from tests import forked
from tests.compat.release import LIBRARIES, PROGRAM, Installation
from tests.e2e.processes import free_port, wait_for

DEADLINE = 120.0


class Collector:
    """`ammeter-server serve` of one version, on a database and a port."""

    def __init__(self, version: Installation, folder: Path, database_url: str, port: int = 0, token: str = "") -> None:
        self.port = port or free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self._token = token
        self._log = folder / f"collector-{self.port}.log"
        command = [sys.executable, "-m", "ammeter_server", "serve"]
        command += ["--port", str(self.port), "--database-url", database_url]
        with self._log.open("ab") as log:
            self._process = forked.Popen(
                command,
                imports=LIBRARIES,
                env=version.environment(),
                stdout=log,
                stderr=log,
                stdin=subprocess.DEVNULL,
                cwd="/",
            )

    def __enter__(self) -> Collector:
        try:
            wait_for(self._answers, "the collector is ready", self.log, DEADLINE)
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._process.send_signal(signal.SIGTERM)
        try:
            self._process.wait(20)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def read(self, path: str) -> bytes:
        """The body of a GET."""
        request = urllib.request.Request(self.url + path)
        if self._token:
            request.add_header("Authorization", f"Bearer {self._token}")
        with urllib.request.urlopen(request, timeout=30) as answer:
            return bytes(answer.read())

    def ask(self, path: str) -> Any:
        """The JSON of a GET."""
        return json.loads(self.read(path))

    def items(self, path: str) -> list[Any]:
        """All items of a list, over its pages."""
        found, token = [], None
        while True:
            page = self.ask(path + (f"{'&' if '?' in path else '?'}page_token={token}" if token else ""))
            found += page["items"]
            token = page["next_page_token"]
            if not token:
                return found

    def metrics(self) -> dict[str, float]:
        """Every sample of /metrics as 'name{label="value",...}', labels in order of their names."""
        found = {}
        for family in text_string_to_metric_families(self.read("/metrics").decode()):
            for sample in family.samples:
                labels = ",".join(f'{name}="{value}"' for name, value in sorted(sample.labels.items()))
                found[f"{sample.name}{{{labels}}}"] = sample.value
        return found

    def log(self) -> str:
        return self._log.read_text()[-3000:]

    def _answers(self) -> bool:
        assert self._process.poll() is None, self.log()
        try:
            with urllib.request.urlopen(self.url + "/readyz", timeout=2) as answer:
                return bool(answer.status == 200)
        except OSError:
            return False


class Training:
    """A process that trains and is watched by one version of the agent."""

    def __init__(
        self,
        version: Installation,
        folder: Path,
        steps: int,
        *,
        bad_from: int = 10**9,
        hold_at: int = -1,
        environment: dict[str, str] | None = None,
        **options: Any,
    ) -> None:
        """hold_at: step after which it waits for go_on()."""
        folder.mkdir(exist_ok=True)
        self._folder = folder
        (folder / "train.py").write_text(PROGRAM)
        self._errors = folder / "training.log"
        command = [sys.executable, "train.py", str(steps), str(bad_from), str(hold_at), json.dumps(options)]
        variables = {"AMMETER_DIR": str(folder / "journals"), **(environment or {})}
        with self._errors.open("w") as errors:
            self._process = forked.Popen(
                command,
                imports=LIBRARIES,
                env=version.environment(**variables),
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                cwd=folder,
            )
        assert self._process.stdout is not None
        self.run, _, file = self._process.stdout.readline().strip().partition(" ")
        assert self.run, self.errors()
        assert version.owns(file), f"{file} is of another version"
        self.journal = folder / "journals" / self.run

    def go_on(self) -> None:
        (self._folder / "go-on").touch()

    def wait(self) -> None:
        """Returns once it has ended well."""
        code = self._process.wait(DEADLINE)
        assert self._process.stdout is not None
        self._process.stdout.close()
        assert code == 0, self.errors()

    def errors(self) -> str:
        return self._errors.read_text()

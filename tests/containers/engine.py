"""Podman, buildah and podman-compose in a store of their own, and the images that docker-compose.yml names.

Nothing of the machine's own containers, images and networks is seen or changed: stand-ins have the names of real
images, and a stack that somebody runs beside the tests must never get them. The store stays between runs; an image
in it is built again when a file that went into it has changed.
"""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from deploy import compose
from deploy.compose import ROOT
from tests.parts import missing, need

STORE = Path(os.environ.get("AMMETER_TEST_CONTAINERS", "/var/tmp/ammeter-test-containers"))
IMAGES = Path(__file__).parent / "images"
BASE = "ammeter.test/debian:bookworm"
SUITE = "bookworm"

STAND_INS = {
    "python": "python",
    "postgres": "postgres",
    "prom/prometheus": "prometheus",
    "prom/alertmanager": "alertmanager",
}
"""Name of an image in docker-compose.yml -> the stage of images/Dockerfile that stands in for it."""

WITHOUT_STAND_IN = {"grafana/grafana": "Debian has no Grafana"}
"""Name of an image -> why its service is not run here."""

HEALTHY_WITHIN_S = 90.0

_CONTAINERS_CONF = """
[containers]
default_ulimits = ["nofile=1024:4096", "nproc=4096:4096"]
log_driver = "k8s-file"
[engine]
runtime = "runc"
cgroup_manager = "cgroupfs"
events_logger = "file"
[network]
network_config_dir = "{store}/networks"
"""

_STORAGE_CONF = """
[storage]
driver = "overlay"
graphroot = "{store}/images"
runroot = "{store}/run"
"""


@dataclass(frozen=True)
class Engine:
    """The programs and the environment that leads them to the store."""

    podman: str
    buildah: str
    debootstrap: str
    compose: tuple[str, ...]
    environment: Mapping[str, str]

    def run(self, *words: str, check: bool = True, text: str | None = None) -> subprocess.CompletedProcess[str]:
        done = subprocess.run(
            words, env=dict(self.environment), cwd=ROOT, input=text, capture_output=True, text=True, check=False
        )
        if check and done.returncode:
            output = "\n".join((done.stdout + done.stderr).strip().splitlines()[-25:])
            raise AssertionError(f"{' '.join(words[:6])} ... ended with {done.returncode}:\n{output}")
        return done

    def inspect(self, container: str) -> Any:
        return json.loads(self.run(self.podman, "container", "inspect", container).stdout)[0]

    def has_image(self, name: str) -> bool:
        return not self.run(self.podman, "image", "exists", name, check=False).returncode


def engine() -> Engine:
    """Ends the test where a program is missing or the machine cannot run containers so."""
    if os.geteuid():
        missing("containers are built in a chroot, which needs root")
    podman, buildah = need("podman"), need("buildah")
    need("runc")
    for helper in ("netavark", "aardvark-dns"):
        if not any((Path(folder) / helper).exists() for folder in ("/usr/lib/podman", "/usr/libexec/podman")):
            missing(f"{helper}, with which containers find each other, is not installed")
    python = Path(sys.executable).parent
    if not (python / "podman-compose").exists():
        missing("podman-compose is not installed: make containers installs it")
    STORE.mkdir(mode=0o700, parents=True, exist_ok=True)
    settings = {"CONTAINERS_CONF": _CONTAINERS_CONF, "CONTAINERS_STORAGE_CONF": _STORAGE_CONF}
    environment = dict(os.environ)
    for name, content in settings.items():
        file = STORE / f"{name.lower()}.conf"
        file.write_text(content.format(store=STORE))
        environment[name] = str(file)
    composed = (str(python / "podman-compose"), "--podman-path", podman)
    return Engine(podman, buildah, need("debootstrap"), composed, environment)


def build_images(engine: Engine) -> None:
    """Every image of docker-compose.yml under its own name, and the shipper's."""
    _build_base(engine)
    file = yaml.safe_load((ROOT / "docker-compose.yml").read_text())
    for image in sorted({service["image"] for service in file["services"].values()}):
        name = image.rpartition(":")[0]
        if name in STAND_INS:
            _build(engine, f"docker.io/{name if '/' in name else f'library/{name}'}:{image.rpartition(':')[2]}",
                   IMAGES / "Dockerfile", IMAGES, STAND_INS[name])  # fmt: skip
    for service in file["services"].values():
        if "build" in service:
            _build(engine, service["image"], ROOT / service["build"]["dockerfile"], ROOT)
    _build(engine, "ammeter-shipper:test", ROOT / "deploy" / "shipper.Dockerfile", ROOT)


def _build_base(engine: Engine) -> None:
    """A small Debian with Python, as debootstrap makes it from where this machine has its packages."""
    if engine.has_image(BASE):
        return
    report("a base image by debootstrap, once")
    with tempfile.TemporaryDirectory(dir=STORE) as folder:
        root = Path(folder) / "root"
        include = "--include=python3,python3-venv,ca-certificates"
        engine.run(engine.debootstrap, "--variant=minbase", include, SUITE, str(root), *_mirror())
        with subprocess.Popen(["tar", "-C", str(root), "-c", "."], stdout=subprocess.PIPE) as packed:
            subprocess.run(
                [engine.podman, "import", "-", BASE],
                stdin=packed.stdout, env=dict(engine.environment), check=True, capture_output=True,
            )  # fmt: skip


def _mirror() -> Iterable[str]:
    """Where apt has its packages from, if it says so in the newer of its two formats; else debootstrap's own."""
    for file in sorted(Path("/etc/apt/sources.list.d").glob("*.sources")):
        for line in file.read_text().splitlines():
            if line.startswith("URIs:"):
                return [line.split()[1]]
    return []


def _build(engine: Engine, image: str, dockerfile: Path, context: Path, target: str = "") -> None:
    """Unless the store has it, built from the same files."""
    label = _fingerprint(dockerfile, context)
    known = engine.run(
        engine.podman, "image", "inspect", "--format", '{{index .Labels "ammeter.test"}}', image, check=False
    )
    if known.stdout.strip() == label:
        return
    report(f"image {image}")
    words = [engine.buildah, "bud", "--isolation", "chroot", "--network", "host", "--layers", "--pull-never"]
    words += [word for path in _of_the_host() for word in ("--volume", f"{path}:{path}:ro")]
    words += ["--target", target] if target else []
    words += ["--label", f"ammeter.test={label}", "--tag", image, "--file", str(dockerfile), str(context)]
    engine.run(*words)


def _of_the_host() -> list[str]:
    """How this machine reaches its package index: pip's settings and the certificates that it trusts."""
    return [path for path in ("/etc/pip.conf", "/etc/ssl/certs/ca-certificates.crt") if Path(path).exists()]


def _fingerprint(dockerfile: Path, context: Path) -> str:
    """Of every file that the build may read."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard", str(context)],
        cwd=ROOT, capture_output=True, text=True, check=True,
    )  # fmt: skip
    found = hashlib.sha256(dockerfile.read_bytes())
    wanted = ("agent/", "server/", "deploy/", "alerts/runbooks/", "dashboards/boards/", "tests/containers/images/")
    for name in sorted(listed.stdout.split("\0")):
        file = ROOT / name
        if name.startswith(wanted) and file.is_file():
            found.update(name.encode() + file.read_bytes())
    return found.hexdigest()[:16]


class Stack:
    """docker-compose.yml, run from the file itself. ports: variable of the file -> port on loopback."""

    def __init__(self, engine: Engine, folder: Path, ports: Mapping[str, int]) -> None:
        self.engine, self.folder, self.ports = engine, folder, ports
        self.project = f"ammeter-test-{os.getpid()}"
        self._environment = folder / "env"
        secrets = ["sh", str(ROOT / "deploy" / "secrets.sh"), str(self._environment), str(folder / "secrets")]
        subprocess.run(secrets, check=True, capture_output=True)
        (folder / "secrets").chmod(0o711)
        with self._environment.open("a") as out:
            out.writelines(f"{name}={port}\n" for name, port in ports.items())
            out.write(f"AMMETER_PUBLIC_URL=http://127.0.0.1:{ports['AMMETER_PORT']}\n")
        variables = dict(line.split("=", 1) for line in self._environment.read_text().splitlines())
        images = {name: service["image"] for name, service in _services_of_the_file().items()}
        every = compose.services(variables)
        self.left_out = {
            service.name: WITHOUT_STAND_IN[images[service.name].rpartition(":")[0]]
            for service in every
            if images[service.name].rpartition(":")[0] in WITHOUT_STAND_IN
        }
        self.services = {service.name: service for service in every if service.name not in self.left_out}

    @property
    def token(self) -> str:
        return (self.folder / "secrets" / "token").read_text()

    @property
    def network(self) -> str:
        return f"{self.project}_default"

    def address(self, variable: str) -> str:
        return f"http://127.0.0.1:{self.ports[variable]}"

    def container(self, service: str) -> str:
        return f"{self.project}_{service}_1"

    def compose(self, *words: str) -> str:
        given = ("--project-name", self.project, "--env-file", str(self._environment))
        return self.engine.run(*self.engine.compose, *given, "--file", str(compose.FILE), *words).stdout

    def up(self) -> None:
        """Each service after those that it needs are healthy, or done: what `depends_on` says. Podman before 4.6 knows
        no such condition, and without systemd nothing asks for health by itself, so both are done here."""
        for service in self.services.values():
            self.compose("up", "--detach", "--no-build", "--no-deps", service.name)
            if service.ends:
                code = self.engine.run(self.engine.podman, "wait", self.container(service.name)).stdout.strip()
                assert "0" == code, self.logs(service.name)
            else:
                self.wait_until_healthy(service.name)
            report(f"{service.name} {'is done' if service.ends else 'is healthy'}")

    def wait_until_healthy(self, service: str) -> None:
        """By the health check that the compose file gives it."""
        deadline = time.monotonic() + HEALTHY_WITHIN_S
        while not self.is_healthy(service):
            assert time.monotonic() < deadline, f"{service} is not healthy:\n{self.logs(service)}"
            time.sleep(0.5)

    def is_healthy(self, service: str) -> bool:
        asked = self.engine.run(self.engine.podman, "healthcheck", "run", self.container(service), check=False)
        return not asked.returncode

    def logs(self, service: str) -> str:
        done = self.engine.run(self.engine.podman, "logs", self.container(service), check=False)
        return done.stdout + done.stderr

    def down(self) -> None:
        self.compose("down", "--volumes", "--timeout", "10")


def _services_of_the_file() -> dict[str, Any]:
    services: dict[str, Any] = yaml.safe_load(compose.FILE.read_text())["services"]
    return services


def clean_up(engine: Engine) -> None:
    """Removes what an earlier run, ended in the middle, has left."""
    for name in engine.run(engine.podman, "ps", "--all", "--quiet").stdout.split():
        engine.run(engine.podman, "rm", "--force", "--volumes", name, check=False)
    engine.run(engine.podman, "network", "prune", "--force", check=False)
    engine.run(engine.podman, "volume", "prune", "--force", check=False)
    engine.run(engine.podman, "image", "prune", "--force", "--filter", "until=168h", check=False)


def report(line: str) -> None:
    """To the person who waits, past pytest's capture."""
    print(f"  {line}", file=sys.__stderr__, flush=True)

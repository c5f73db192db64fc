"""Wheels and source archives as a package index gets them, in an environment that has nothing of the source tree."""

from __future__ import annotations

import email.parser
import json
import os
import shutil
import subprocess
import sys
import tarfile
import tomllib
import urllib.request
import zipfile
from dataclasses import dataclass
from email.message import Message
from pathlib import Path

import pytest
import torch

from tests.e2e.processes import free_port, wait_for
from tests.house.tree import ROOT
from tests.parts import missing

LIBRARIES = Path(torch.__file__).parents[1]
"""Where torch and the other dependencies are installed."""

COMPILERS = ("cc", "gcc", "clang")
SECONDS = 400
NAMES = ("agent", "server")


@dataclass(frozen=True)
class Built:
    """One distribution as files."""

    wheel: Path
    archive: Path

    def in_wheel(self) -> set[str]:
        with zipfile.ZipFile(self.wheel) as opened:
            return set(opened.namelist())

    def in_archive(self) -> set[str]:
        with tarfile.open(self.archive) as opened:
            return {name.partition("/")[2] for name in opened.getnames()}

    def metadata(self) -> Message:
        (name,) = (name for name in self.in_wheel() if name.endswith(".dist-info/METADATA"))
        with zipfile.ZipFile(self.wheel) as opened:
            return email.parser.Parser().parsestr(opened.read(name).decode())


@dataclass(frozen=True)
class Environment:
    """A virtual environment that sees torch and no other installation of Ammeter."""

    folder: Path

    @property
    def python(self) -> str:
        return str(self.folder / "bin" / "python")

    def program(self, name: str) -> str:
        return str(self.folder / "bin" / name)

    def variables(self, **more: str) -> dict[str, str]:
        own = {"HOME": str(self.folder / "home"), "PATH": f"{self.folder / 'bin'}:/usr/bin:/bin"}
        return {**{name: value for name, value in os.environ.items() if name != "PYTHONPATH"}, **own, **more}

    def run(self, *words: str, code: int = 0, **more: str) -> str:
        """Standard output of a command that has to end with this exit code."""
        return self.run_with_errors(*words, code=code, **more)[0]

    def run_with_errors(self, *words: str, code: int = 0, **more: str) -> tuple[str, str]:
        """Standard output and standard error of a command that has to end with this exit code."""
        done = subprocess.run(
            words, cwd=self.folder, env=self.variables(**more), capture_output=True, text=True, timeout=SECONDS
        )
        assert code == done.returncode, f"{words}: {done.returncode}\n{done.stdout}\n{done.stderr}"
        return done.stdout, done.stderr

    def install(self, *paths: Path) -> None:
        words = ["install", "-q", "--no-deps", "--no-index", "--force-reinstall", "--no-build-isolation"]
        self.run(self.python, "-m", "pip", *words, *map(str, paths))


def make_environment(folder: Path) -> Environment:
    command = [sys.executable, "-m", "venv", "--without-pip", str(folder)]  # it finds pip among the libraries
    subprocess.run(command, check=True, timeout=SECONDS)
    environment = Environment(folder)
    (folder / "home").mkdir()
    packages = environment.run(environment.python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))")
    # A line of a .pth file adds the folder; the .pth files in it, such as those of an editable Ammeter, are not read.
    Path(packages.strip(), "libraries.pth").write_text(f"{LIBRARIES}\n")
    return environment


def build_requirements(name: str) -> list[str]:
    """Requirements that a distribution declares for its build."""
    found: list[str] = tomllib.loads((ROOT / name / "pyproject.toml").read_text())["build-system"]["requires"]
    return found


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Built]:
    """Both distributions, built by `python -m build` in an environment with nothing but their build requirements."""
    folder = tmp_path_factory.mktemp("build")
    builder = folder / "builder"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(builder)], check=True, timeout=SECONDS)
    python = str(builder / "bin" / "python")
    command = [sys.executable, "-m", "pip", "--python", python, "install", "-q", "--disable-pip-version-check"]
    command += ["build", *sorted({requirement for name in NAMES for requirement in build_requirements(name)})]
    installed = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS)
    if installed.returncode:
        missing(f"the package `build` cannot be installed: {installed.stderr.strip()[-300:]}")
    found = {}
    for name in NAMES:
        made = folder / name
        command = [python, "-m", "build", "--no-isolation", "--outdir", str(made), str(ROOT / name)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS)
        assert done.returncode == 0, done.stdout + done.stderr
        (wheel,), (archive,) = made.glob("*.whl"), made.glob("*.tar.gz")
        found[name] = Built(wheel, archive)
    return found


@pytest.fixture(scope="module")
def installed(built: dict[str, Built], tmp_path_factory: pytest.TempPathFactory) -> Environment:
    """An environment with both wheels."""
    environment = make_environment(tmp_path_factory.mktemp("wheels") / "environment")
    environment.install(built["agent"].wheel, built["server"].wheel)
    return environment


@pytest.mark.parametrize(("name", "package"), [("agent", "ammeter"), ("server", "ammeter_server")])
def test_wheel_and_archive_hold_license_readme_types_and_runbooks(
    built: dict[str, Built], name: str, package: str
) -> None:
    runbooks = {
        "agent": f"{package}/runbooks/nonfinite-loss.md",
        "server": f"{package}/assets/runbooks/nonfinite-loss.md",
    }
    needed = {f"{package}/py.typed", runbooks[name]}
    assert needed <= built[name].in_wheel()
    assert needed | {"LICENSE", "README.md", "pyproject.toml"} <= built[name].in_archive()
    assert any(entry.endswith(".dist-info/licenses/LICENSE") for entry in built[name].in_wheel())
    metadata = built[name].metadata()
    assert ("Apache-2.0", ">=3.11") == (metadata["License-Expression"], metadata["Requires-Python"])
    assert (ROOT / name / "README.md").read_text().strip() == str(metadata.get_payload()).strip()


def test_the_wheel_holds_the_compiled_reader_and_the_archive_its_source(built: dict[str, Built]) -> None:
    if not any(map(shutil.which, COMPILERS)):
        missing("no C compiler is installed")
    source = {"ammeter/tensors/reading.c", "hatch_build.py"}
    assert "ammeter/tensors/libreading.so" in built["agent"].in_wheel()
    assert source <= built["agent"].in_archive()
    assert [] == [name for name in built["agent"].in_archive() if name.endswith(".so")]


def test_the_pages_of_the_collector_are_in_its_wheel(built: dict[str, Built]) -> None:
    server = ROOT / "server"
    ignored = (".pyc", ".py")
    files = {
        path.relative_to(server).as_posix()
        for path in (server / "ammeter_server").rglob("*")
        if path.is_file() and not path.name.endswith(ignored)
    }
    assert files
    assert set() == files - built["server"].in_wheel()


def test_the_commands_of_the_agent_run(installed: Environment) -> None:
    file = installed.run(installed.python, "-c", "import ammeter; print(ammeter.__file__)")
    assert Path(file.strip()).is_relative_to(installed.folder)
    assert installed.run(installed.program("ammeter"), "--version").startswith("ammeter ")
    assert "# " in installed.run(installed.program("ammeter"), "runbook", "nonfinite-loss")
    output = installed.run(installed.program("ammeter"), "doctor")
    assert "read by compiled code" in output or not any(map(shutil.which, COMPILERS))


@pytest.mark.parametrize("part", ["lightning.pytorch", "lightning.fabric", "pytorch_lightning", "lightning_fabric"])
def test_lightning_finds_an_entry_point_that_adds_nothing_unasked(installed: Environment, part: str) -> None:
    program = (
        "import sys; from importlib.metadata import entry_points\n"
        f"found = [entry.load()() for entry in entry_points(group='{part}.callbacks_factory')]\n"
        "print(found, 'ammeter' in sys.modules)"
    )
    assert "[[]] False\n" == installed.run(installed.python, "-c", program)


PROGRAM = """
import torch, ammeter
torch.manual_seed(0)
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
run = ammeter.watch(model, optimizer, scaler, name="packaged")
for step in range(30):
    optimizer.zero_grad()
    loss = model(torch.randn(8, 4)).square().mean() * (float("inf") if step >= 10 else 1)
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
run.close()
print(run.path)
"""


def test_a_training_is_watched_and_reported(installed: Environment) -> None:
    path = installed.run(installed.python, "-c", PROGRAM).strip()
    document = json.loads(installed.run(installed.program("ammeter"), "report", path, "--json", code=3))
    assert ("packaged", 30) == (document["run"]["name"], document["summary"]["steps"])
    assert ["nonfinite-loss"] == [finding["verdict"] for finding in document["findings"]]


def test_an_unchanged_script_is_watched_by_ammeter_run(installed: Environment) -> None:
    script = PROGRAM.replace("import torch, ammeter", "import torch").partition("run = ")
    lines = [script[0], *script[2].splitlines(keepends=True)[1:-2]]
    (installed.folder / "train.py").write_text("".join(lines))
    folder = str(installed.folder / "unchanged")
    command = [installed.program("ammeter"), "run", "--name", "unchanged", "--dir", folder]
    installed.run(*command, "--", installed.python, "train.py")
    document = json.loads(installed.run(installed.program("ammeter"), "report", folder, "--json", code=3))
    assert "unchanged" == document["run"]["name"]


def test_the_collector_serves_its_page_runbooks_and_boards(installed: Environment) -> None:
    port = free_port()
    command = [installed.program("ammeter-server"), "serve", "--port", str(port)]
    command += ["--database-url", f"sqlite:///{installed.folder / 'collector.db'}"]
    log = installed.folder / "collector.log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            command, cwd=installed.folder, env=installed.variables(), stdout=output, stderr=output
        )

    def read(path: str) -> str:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=10) as answer:
            return str(answer.read().decode())

    def is_ready() -> bool:
        assert process.poll() is None, log.read_text()
        try:
            return bool(read("/readyz"))
        except OSError:
            return False

    try:
        wait_for(is_ready, "the collector is ready", log.read_text, 120)
        assert "<html" in read("/")
        assert "<h1" in read("/runbooks/nonfinite-loss")
        assert "panels" in json.loads(read("/api/v1/dashboards/on-call"))
        assert [] == json.loads(read("/api/v1/runs"))["items"]
    finally:
        process.terminate()
        process.wait(30)


def test_without_a_compiler_the_agent_installs_and_the_doctor_names_what_is_slower(
    built: dict[str, Built], tmp_path: Path
) -> None:
    environment = make_environment(tmp_path / "environment")
    command = [environment.python, "-m", "pip", "install", "-v", "--no-deps", "--no-index", "--no-build-isolation"]
    only = str(environment.folder / "bin")
    _, errors = environment.run_with_errors(*command, str(built["agent"].archive), PATH=only, CC="false")
    assert "installed without its compiled reader" in errors
    assert "norms are read less often" in errors
    doctor = environment.run(environment.program("ammeter"), "doctor")
    assert "torch's operators, rarely, as the budget allows" in doctor
    path = environment.run(environment.python, "-c", PROGRAM).strip()
    found = json.loads(environment.run(environment.program("ammeter"), "report", path, "--json", code=3))
    assert 30 == found["summary"]["steps"]

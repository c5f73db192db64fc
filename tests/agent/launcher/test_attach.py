"""`ammeter run` gets in however a program starts its Python; where it cannot, the last line says truly why."""

from __future__ import annotations

import site
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path
from typing import Any

import pytest

from tests.agent.launching import TRAINS, launch
from tests.agent.programs import Ended, steps
from tests.house.tree import ROOT

pytestmark = pytest.mark.long

STEPS = "for _ in range(4): step()\nprint('done', flush=True)\n"


def _python(folder: Path, *lines: str) -> Path:
    """A virtual environment whose site-packages hold these lines in a .pth file, and nothing else."""
    venv.create(folder, with_pip=False, symlinks=True)
    packages = folder / "lib" / f"python{sys.version_info[0]}.{sys.version_info[1]}" / "site-packages"
    (packages / "first.pth").write_text("\n".join(lines) + "\n")
    return folder / "bin" / "python"


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Python in which ammeter is installed as its wheel installs it, beside the torch of this one."""
    others = [f"import site; site.addsitedir({package!r})" for package in _packages()]
    python = _python(tmp_path_factory.mktemp("installed"), str(ROOT / "agent"), *others)
    text = (ROOT / "agent" / "ammeter_startup.pth").read_text()
    (
        python.parents[1]
        / "lib"
        / f"python{sys.version_info[0]}.{sys.version_info[1]}"
        / "site-packages"
        / "startup.pth"
    ).write_text(text)
    return python


@pytest.fixture(scope="module")
def bare(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Python in which nothing is installed."""
    return _python(tmp_path_factory.mktemp("bare"))


def _packages() -> list[str]:
    return list(dict.fromkeys([*site.getsitepackages(), sysconfig.get_path("purelib")]))


WAYS = {
    "as it is": "exec {python} script.py",
    "with another PYTHONPATH": "export PYTHONPATH=/tmp; {python} script.py",
    "with no PYTHONPATH": "PYTHONPATH= {python} script.py",
    "without PYTHONPATH": "unset PYTHONPATH; {python} script.py",
    "isolated": "{python} -I script.py",
    "without its environment": "{python} -E script.py",
    "in a cleared environment": "env -i {python} script.py",
    "in a cleared environment, below another Python": (
        "{python} -c \"import subprocess, sys; subprocess.run([sys.executable, '-I', 'script.py'], env={{}})\""
    ),
    "by its first line": "sed -i '1i #!{python} -sE' script.py; chmod +x script.py; ./script.py",
    "behind a sitecustomize of its own": (
        "mkdir own; echo \"open('own/ran', 'w').close()\" > own/sitecustomize.py;"
        " PYTHONPATH=own:$PYTHONPATH {python} script.py; test -e own/ran"
    ),
    "with site asked for": ("echo 'import site; site.main()' | cat - script.py > late.py; {python} -S late.py"),
}


@pytest.mark.parametrize("way", WAYS)
def test_a_python_that_has_ammeter_is_watched_however_it_is_started(way: str, installed: Path, tmp_path: Path) -> None:
    line = WAYS[way].format(python=installed)
    found = launch(STEPS, tmp_path, command=["bash", "-c", line]).end()
    assert (0, "done\n") == (found.code, found.out), found.err
    assert [0, 1, 2, 3] == steps(found.stream())
    assert "nothing wrong was found" in found.err


def test_nothing_is_left_of_a_launch(installed: Path, tmp_path: Path) -> None:
    script = "print('_ammeter_startup' in sys.modules, os.environ['AMMETER_LAUNCH'])"
    found = launch(script, tmp_path, begin="import os, sys\n", command=[str(installed), "script.py"]).end()
    was_there, folder = found.out.split()
    assert ("True", False) == (was_there, Path(folder).exists())


def test_a_python_that_is_not_launched_has_nothing_of_ours(installed: Path) -> None:
    """But for the module that has looked for a launcher, where one runs just now."""
    script = "import sys; print([name for name in sys.modules if name.startswith('ammeter')]"
    script += " + [finder for finder in sys.meta_path if 'ammeter' in type(finder).__module__])"
    done = subprocess.run([installed, "-c", script], capture_output=True, text=True, timeout=60)
    assert ("[]\n", "") == (done.stdout, done.stderr)


def test_a_search_for_what_we_wait_for_finds_it_and_we_wait_on(installed: Path, tmp_path: Path) -> None:
    looks = (
        "import importlib.util\n"
        "spec = importlib.util.find_spec('torch._dynamo')\n"
        "print(spec.loader.get_filename('torch._dynamo') == spec.origin)\n"
    )
    found = launch(STEPS, tmp_path, begin=looks + TRAINS, command=[str(installed), "script.py"]).end()
    assert (0, "True\ndone\n") == (found.code, found.out), found.err
    assert [0, 1, 2, 3] == steps(found.stream())


@pytest.mark.parametrize(
    "first", ["import ammeter", "import ammeter.client", "from ammeter.integrations import framework_run"]
)
def test_a_program_that_imports_ammeter_before_torch_is_watched(first: str, installed: Path, tmp_path: Path) -> None:
    found = launch(STEPS, tmp_path, begin=f"{first}\n{TRAINS}", command=[str(installed), "script.py"]).end()
    assert (0, "done\n") == (found.code, found.out), found.err
    assert [0, 1, 2, 3] == steps(found.stream())


def _torch(folder: Path, version: str, *, dynamo: bool = True) -> Path:
    """A folder with a package that looks like an old torch."""
    (folder / "torch").mkdir(parents=True)
    (folder / "torch" / "__init__.py").write_text(f"__version__ = {version!r}\n" + "import torch._dynamo\n" * dynamo)
    if dynamo:
        (folder / "torch" / "_dynamo.py").write_text("")
    return folder


def _said(words: list[str], folder: Path, **environment: Any) -> Ended:
    folder.mkdir(exist_ok=True)
    return launch("", folder, begin="import time, torch\ntime.sleep(0.6)\n", command=words, **environment).end()


def _why(found: Ended) -> str:
    (line,) = [line for line in found.err.splitlines() if line.startswith("ammeter: nothing was watched: ")]
    return line.removeprefix("ammeter: nothing was watched: ")


def test_a_python_without_ammeter_is_named_with_the_remedy(bare: Path, tmp_path: Path) -> None:
    path = _torch(tmp_path / "fake", "2.6.0")
    found = _said([str(bare), "script.py"], tmp_path, PYTHONPATH=str(path))
    # Python names itself by the path of the environment
    assert f"ammeter is not installed in {bare}; run: {bare} -m pip install ammeter" == _why(found)
    assert 1 == found.err.count("ammeter: this program is not watched: ammeter is not installed")


def test_a_program_that_has_no_stderr_runs_on_when_we_have_something_to_say(bare: Path, tmp_path: Path) -> None:
    path = _torch(tmp_path / "fake", "2.6.0")
    for closed in ("2>&-", "2>/dev/full"):
        line = f"{bare} script.py {closed}"
        found = launch(
            "print(torch.__version__)",
            tmp_path,
            begin="import torch\n",
            command=["bash", "-c", line],
            PYTHONPATH=str(path),
        ).end()
        assert (0, "2.6.0\n") == (found.code, found.out)


@pytest.mark.parametrize(("version", "dynamo"), [("2.1.2+cpu", True), ("1.13.1", False)])
def test_a_torch_that_is_too_old_is_named(version: str, dynamo: bool, bare: Path, tmp_path: Path) -> None:
    path = _torch(tmp_path / "fake", version, dynamo=dynamo)
    said = _why(_said([str(bare), "script.py"], tmp_path, PYTHONPATH=str(path)))
    assert f"torch {version}" in said
    assert "2.4" in said


def test_where_torch_is_missing_that_is_said(bare: Path, tmp_path: Path) -> None:
    found = _said([str(bare), "script.py"], tmp_path)
    assert 1 == found.code
    assert f"torch is not installed in {bare}, and {bare} script.py imports it" == _why(found)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["{python}", "-S", "script.py"], "python -S skips the module site"),
        (["{python}", "-I", "script.py"], "python -I ignores PYTHONPATH"),
        (["{python}", "-E", "script.py"], "python -E ignores PYTHONPATH"),
        (["bash", "-c", "{python} -I script.py; true"], "python -I ignores PYTHONPATH"),
        (["env", "-i", "{python}", "script.py"], "was started with a cleared environment"),
        (["bash", "-c", "PYTHONPATH=/opt/x {python} script.py"], "was started with another PYTHONPATH (/opt/x)"),
    ],
)
def test_how_a_python_kept_us_out_is_said(words: list[str], said: str, bare: Path, tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text("")
    command = [word.format(python=bare) for word in words]
    found = launch("time.sleep(0.8)", tmp_path, begin="import time\n", command=command).end()
    assert said in _why(found)
    assert str(bare) in _why(found)


def test_a_sitecustomize_that_stands_before_ours_is_named(bare: Path, tmp_path: Path) -> None:
    (tmp_path / "own").mkdir()
    (tmp_path / "own" / "sitecustomize.py").write_text("")
    line = f"PYTHONPATH={tmp_path / 'own'}:$PYTHONPATH {bare} script.py"
    found = launch("time.sleep(0.8)", tmp_path, begin="import time\n", command=["bash", "-c", line]).end()
    assert "loads another sitecustomize.py" in _why(found)


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("true", "the command started no Python process that Ammeter could find"),
        ("{python} -c pass", "{python} -c pass never imported torch"),
    ],
)
def test_where_there_was_nothing_to_watch_that_is_said(line: str, said: str, tmp_path: Path) -> None:
    found = launch("", tmp_path, command=line.format(python=sys.executable).split()).end()
    assert said.format(python=sys.executable) == _why(found)


def test_a_program_that_raises_before_its_first_step_is_told_with_its_code(tmp_path: Path) -> None:
    found = launch("raise SystemExit(3)", tmp_path).end()
    assert 3 == found.code
    assert "but no optimizer of torch made a step before the command ended with exit code 3" in _why(found)


def test_a_folder_that_cannot_be_written_is_the_reason(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    found = launch(STEPS, tmp_path, AMMETER_DIR=str(tmp_path / "file")).end()
    assert (0, "done\n") == (found.code, found.out)
    assert "file" in _why(found)
    assert "Error" in _why(found)


def test_a_program_that_switches_us_off_is_told_as_that(tmp_path: Path) -> None:
    line = f"AMMETER_DISABLE=1 {sys.executable} script.py"
    assert "AMMETER_DISABLE is set" == _why(launch(STEPS, tmp_path, command=["bash", "-c", line]).end())


def test_a_program_that_writes_its_own_journal_elsewhere_is_told_as_that(tmp_path: Path) -> None:
    own = f"import ammeter\nrun = ammeter.watch(model, optimizer, dir={str(tmp_path / 'own')!r})\n"
    assert "the program calls ammeter.watch() itself" in _why(launch(own + STEPS, tmp_path).end())

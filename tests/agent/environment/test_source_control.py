from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from ammeter.environment.source_control import commit_of
from ammeter.report import baseline
from tests import forked
from tests.parts import need


def git(folder: Path, *words: str) -> str:
    identity = ("-c", "user.name=a", "-c", "user.email=a@b.example", "-c", "init.defaultBranch=main")
    return subprocess.run(
        [need("git"), *identity, *words], cwd=folder, capture_output=True, text=True, check=True
    ).stdout.strip()


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    folder = tmp_path / "repository"
    (folder / "scripts").mkdir(parents=True)
    (folder / "scripts" / "train.py").write_text("")
    git(folder, "init", "--quiet")
    git(folder, "add", ".")
    git(folder, "commit", "--quiet", "--message", "first")
    return folder


def test_the_commit_around_the_script_is_the_one_that_git_names(repository: Path) -> None:
    script = repository / "scripts" / "train.py"
    assert git(repository, "rev-parse", "HEAD") == commit_of(str(script))
    git(repository, "commit", "--quiet", "--allow-empty", "--message", "second")
    assert git(repository, "rev-parse", "HEAD") == commit_of(str(script))


@pytest.mark.parametrize("change", [("pack-refs", "--all"), ("checkout", "--quiet", "--detach")], ids=lambda x: x[0])
def test_it_is_found_wherever_git_keeps_it(repository: Path, change: tuple[str, ...]) -> None:
    git(repository, *change)
    assert git(repository, "rev-parse", "HEAD") == commit_of(str(repository / "scripts" / "train.py"))


def test_a_worktree_has_the_commit_that_is_checked_out_there(repository: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    git(repository, "worktree", "add", "--quiet", "-b", "side", str(other))
    git(other, "commit", "--quiet", "--allow-empty", "--message", "there")
    assert git(other, "rev-parse", "HEAD") == commit_of(str(other / "scripts" / "train.py"))
    assert git(repository, "rev-parse", "HEAD") != git(other, "rev-parse", "HEAD")


def test_without_a_repository_or_a_script_nothing_is_claimed(tmp_path: Path) -> None:
    assert ["", "", "", ""] == [commit_of(script) for script in ("", "-c", str(tmp_path / "train.py"), "\0")]


@pytest.mark.parametrize("head", ["", "ref: refs/heads/none", "ref: ../../etc/passwd", "no commit", "\x00" * 9000])
def test_a_head_that_names_no_commit_is_left_out(repository: Path, head: str) -> None:
    (repository / ".git" / "HEAD").write_text(head)
    assert "" == commit_of(str(repository / "scripts" / "train.py"))


def test_an_empty_repository_has_none(tmp_path: Path) -> None:
    git(tmp_path, "init", "--quiet")
    assert "" == commit_of(str(tmp_path / "train.py"))


SCRIPT = """
import sys
import torch, ammeter

model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
run = ammeter.watch(model, optimizer, dir=sys.argv[1])
for _ in range(3):
    optimizer.zero_grad()
    model(torch.ones(2, 4)).sum().backward()
    optimizer.step()
print(run.id)
run.close()
"""


def test_a_run_says_from_which_commit_it_was_started(repository: Path, tmp_path: Path) -> None:
    (repository / "train.py").write_text(SCRIPT)
    command = [sys.executable, "train.py", str(tmp_path / "journals")]
    done = forked.run(command, cwd=repository, capture_output=True, check=True, timeout=120)
    recorded = baseline.read(tmp_path / "journals" / done.stdout.split()[-1]).environment
    assert git(repository, "rev-parse", "HEAD") == recorded["git_commit"]

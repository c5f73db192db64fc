"""Every fenced block of the documents has a language, and its language has a test that runs or checks it."""

from __future__ import annotations

import configparser
import json
import re
import subprocess
from pathlib import Path

import pytest
import yaml

from tests import parts
from tests.docs.blocks import Block, all_blocks, blocks, pages
from tests.house import tree
from website.pictures.page import FOLDER, title_in

CHECKED_BY = {
    "sh": "tests/docs/test_commands.py",
    "console": "tests/docs/test_commands.py",
    "http": "tests/docs/test_commands.py",
    "python": "RUN_BY below",
    "yaml": "this file",
    "json": "this file",
    "ini": "this file",
    "promql": "this file",
    "nginx": "this file",
    "text": "nothing: it is output or a drawing, no code",
}
"""Language of a block -> where such blocks are run or checked. A block in another language has no test: add one."""

RUN_BY = {
    "README.md": "tests/docs/test_programs.py",
    "docs/asking.md": "tests/e2e/test_directives.py",
    "docs/checkpoints.md": "tests/agent/inspection/test_page.py",
    "docs/client.md": "tests/agent/client/test_client.py",
    "docs/exporting.md": "tests/agent/export/test_documents.py",
    "docs/guards.md": "tests/docs/test_programs.py",
    "docs/integrations.md": "tests/agent/integrations/test_documented.py",
    "docs/migration.md": "tests/docs/test_migration.py",
    "docs/notebooks.md": "tests/agent/recorded/test_documents.py",
    "docs/preflight.md": "tests/docs/test_programs.py",
    "docs/protocol.md": "tests/e2e/test_protocol_example.py",
    "docs/quickstart.md": "tests/docs/test_quickstart.py",
    "docs/recipes": "tests/docs/test_recipes.py",
    "docs/report.md": "tests/docs/test_programs.py",
}
"""Page or folder with programs -> the test that runs them. Those of runbooks are excerpts, which are compiled."""


def ids(block: Block) -> str:
    return str(block)


@pytest.mark.parametrize("page", pages(), ids=lambda page: str(page.relative_to(tree.ROOT)))
def test_every_block_is_in_a_language_that_is_checked(page: Path) -> None:
    assert [] == [str(block) for block in blocks(page) if block.language not in CHECKED_BY]


def test_every_program_in_a_document_is_run_by_a_test() -> None:
    runbooks = tree.ROOT / "alerts"
    with_programs = {block.page for block in all_blocks("python") if runbooks not in block.page.parents}
    claimed = {path for name in RUN_BY for path in (tree.ROOT / name, *(tree.ROOT / name).rglob("*.md"))}
    assert [] == sorted(str(page) for page in with_programs - claimed)
    assert [] == [name for name, test in RUN_BY.items() if Path(name).name not in (tree.ROOT / test).read_text()]


@pytest.mark.parametrize("block", all_blocks("python"), ids=ids)
def test_every_program_compiles(block: Block) -> None:
    text = block.text if "return " not in block.text.splitlines()[-1][:7] else f"def f():\n{_indented(block.text)}"
    compile(text, str(block), "exec")


def _indented(text: str) -> str:
    return "".join(f"    {line}\n" for line in text.splitlines())


@pytest.mark.parametrize("block", all_blocks("yaml"), ids=ids)
def test_every_yaml_is_yaml(block: Block) -> None:
    assert isinstance(yaml.safe_load(block.text), dict)


@pytest.mark.parametrize("block", all_blocks("json"), ids=ids)
def test_every_json_is_json(block: Block) -> None:
    assert json.loads(block.text)


@pytest.mark.parametrize("block", all_blocks("ini"), ids=ids)
def test_every_unit_of_systemd_starts_a_command_of_ours(block: Block) -> None:
    unit = configparser.ConfigParser(strict=False, interpolation=None)
    unit.read_string(block.text)
    assert unit["Service"]["ExecStart"].endswith("/ammeter-server serve")


@pytest.mark.parametrize("block", all_blocks("promql"), ids=ids)
def test_every_query_is_one_for_prometheus(block: Block, tmp_path: Path) -> None:
    rules = {"groups": [{"name": "documents", "rules": [{"record": "a:b", "expr": block.text}]}]}
    (tmp_path / "rules.yaml").write_text(yaml.safe_dump(rules))
    command = [parts.need("promtool"), "check", "rules", str(tmp_path / "rules.yaml")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert 0 == done.returncode, done.stderr


@pytest.mark.parametrize("block", all_blocks("nginx"), ids=ids)
def test_every_location_of_nginx_has_its_directives_closed(block: Block) -> None:
    """nginx itself is not installed where the tests run: this checks the form, and the port."""
    first, *directives, last = block.text.strip().splitlines()
    assert ("location / {", "}") == (first, last)
    assert [] == [line for line in directives if not re.fullmatch(r" {4}[a-z_]+( \S+)+;", line)]
    assert "    proxy_pass http://127.0.0.1:8480;" in directives


def test_the_finding_that_the_readme_shows_is_that_of_the_report_page_and_of_a_recorded_run() -> None:
    (readme,) = blocks(tree.ROOT / "README.md", "text")
    first, *_ = (block.text for block in blocks(tree.ROOT / "docs" / "report.md", "text"))
    assert [] == [line for line in readme.text.splitlines() if line not in first.splitlines()]
    assert f" PAGE  {title_in(FOLDER / 'nonfinite-gradient.svg')}  nonfinite-gradient" == first.splitlines()[0]

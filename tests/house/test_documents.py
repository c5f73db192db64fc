"""What the documents say is what the code does: names on both sides are the same, links lead somewhere."""

from __future__ import annotations

import ast
import json
import re
import tomllib
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

import pytest
import yaml

import ammeter
from ammeter.verdicts import ALL
from ammeter.verdicts.framework.finding import Verdict
from ammeter.wire import frames
from ammeter_server.app import create_app
from ammeter_server.config.settings import READERS, Settings
from ammeter_server.ops.runbooks import OF_ALERTS
from ammeter_server.process import self_metrics
from ammeter_server.prometheus.metrics import METRICS, PROCESS_METRICS
from bench.common import readme
from tests.house import tree

DOCS = tree.ROOT / "docs"
README = tree.ROOT / "README.md"
EVENT = re.compile(r"[a-z]+\.[a-z_0-9]+")
METRIC = re.compile(r"(?:\bproject:)?\bammeter_[\w:]+")
SETTING = re.compile(r"\bAMMETER_[A-Z_]+\b")


def section(path: Path, heading: str) -> str:
    """The text under a heading of the second level, up to the next one."""
    parts = re.split(rf"^## {re.escape(heading)}.*$", path.read_text(), maxsplit=1, flags=re.MULTILINE)
    assert len(parts) == 2, f"{path.name} has no section '## {heading}'"
    return re.split(r"^## ", parts[1], maxsplit=1, flags=re.MULTILINE)[0]


def first_cells(text: str) -> list[str]:
    """What stands in backticks in the first column of the tables."""
    return re.findall(r"^\| `([^`]+)`[^|]*\|", text, re.MULTILINE)


def names_in_tables(text: str) -> set[str]:
    """What stands in backticks anywhere in the tables, where it has the form of a name."""
    rows = "\n".join(line for line in text.splitlines() if line.startswith("|"))
    return set(re.findall(r"`([a-z0-9-]+)`", rows))


def constants(path: Path) -> Iterator[str]:
    for node in ast.walk(tree.syntax(path)):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value


@cache
def events_in_code() -> set[str]:
    told_by = (tree.AGENT / "probes", tree.AGENT / "guards", tree.AGENT / "recording" / "directives")
    writers = [*(path for folder in told_by for path in folder.rglob("*.py")), tree.AGENT / "recording" / "session.py"]
    emitted = {constant for path in writers for constant in constants(path) if EVENT.fullmatch(constant)}
    return emitted - set(frames.STATS)


def test_every_event_is_described_and_every_described_event_is_written() -> None:
    described = [name for name in first_cells(section(DOCS / "events.md", "Events")) if EVENT.fullmatch(name)]
    assert sorted(events_in_code()) == sorted(described)


def test_every_column_is_described_and_every_described_column_exists() -> None:
    described = first_cells(section(DOCS / "events.md", "Columns"))
    assert sorted([*frames.SCALARS, *frames.STATS]) == sorted(described)


@pytest.mark.parametrize("verdict", ALL, ids=lambda verdict: verdict.id)
def test_every_column_and_event_that_a_verdict_reads_exists(verdict: Verdict) -> None:
    assert set(verdict.events) <= events_in_code()
    assert set(verdict.columns) <= {*frames.SCALARS, *frames.STATS}


def gpu_only() -> set[str]:
    """Verdicts that no run on a CPU can show, as the trainer lists them."""
    (names,) = (
        node.value
        for node in tree.syntax(tree.ROOT / "trainer" / "faults" / "registry.py").body
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "GPU_ONLY"
    )
    return set(ast.literal_eval(names))


def test_no_fault_is_missing_that_could_be_there() -> None:
    assert set() == gpu_only() & tree.faults_of_the_trainer()
    assert gpu_only() <= {verdict.id for verdict in ALL}


@pytest.mark.parametrize("verdict", ALL, ids=lambda verdict: verdict.id)
def test_every_verdict_has_its_file_fault_runbook_and_row(verdict: Verdict) -> None:
    assert 1 == len(list((tree.AGENT / "verdicts").glob(f"*/{verdict.id.replace('-', '_')}.py")))
    assert (tree.ROOT / "alerts" / "runbooks" / f"{verdict.id}.md").is_file()
    assert verdict.id in tree.faults_of_the_trainer() | gpu_only()
    row = next(line for line in (DOCS / "verdicts.md").read_text().splitlines() if line.startswith(f"| `{verdict.id}`"))
    assert f"../alerts/runbooks/{verdict.id}.md" in row
    assert verdict.question in row
    assert verdict.severity in row


def test_no_row_runbook_or_readme_line_is_left_of_a_verdict_that_is_gone() -> None:
    ids = {verdict.id for verdict in ALL}
    written = {path.stem for path in (tree.ROOT / "alerts" / "runbooks").glob("*.md")}
    assert ids | {"checklist", *OF_ALERTS} == written
    assert ids == set(first_cells(section(DOCS / "verdicts.md", "The verdicts")))
    assert ids == names_in_tables(section(README, "What it finds"))


@pytest.mark.parametrize("name", [*(verdict.id for verdict in ALL), *OF_ALERTS])
def test_every_runbook_leads_to_the_checklist_where_one_looks_first(name: str) -> None:
    path = tree.ROOT / "alerts" / "runbooks" / f"{name}.md"
    assert "](/runbooks/checklist)" in section(path, "How to check")


def test_what_explains_what_is_as_the_verdicts_have_it() -> None:
    rows = re.findall(r"^\| (`.*) \| (`.*) \|$", section(DOCS / "verdicts.md", "One fault"), re.MULTILINE)
    documented = {
        cause: set(re.findall(r"`([^`]+)`", row[1])) for row in rows for cause in re.findall(r"`([^`]+)`", row[0])
    }
    assert {verdict.id: set(verdict.explains) for verdict in ALL if verdict.explains} == documented


def exported() -> set[str]:
    own = {family.name + ("_total" if family.type == "counter" else "") for family in self_metrics.REGISTRY.collect()}
    return own | {metric.name for metric in (*METRICS, *PROCESS_METRICS)}


def test_every_metric_is_described_and_every_described_metric_is_exported() -> None:
    described = [name for name in first_cells((DOCS / "metrics.md").read_text()) if name.startswith("ammeter_")]
    assert sorted(exported()) == sorted(described)


def rules() -> Iterator[dict[str, str]]:
    for path in (tree.ROOT / "alerts").glob("*.rules.yaml"):
        for group in yaml.safe_load(path.read_text())["groups"]:
            yield from group["rules"]


def asked_for() -> Iterator[tuple[str, str]]:
    """(where, expression) of every rule and every panel."""
    yield from ((rule.get("alert") or rule["record"], rule["expr"]) for rule in rules())
    for path in (tree.ROOT / "dashboards" / "boards").glob("*.json"):
        for panel in json.loads(path.read_text())["panels"]:
            for inner in (panel, *panel.get("panels", ())):
                yield from ((f"{path.stem}: {inner['title']}", target["expr"]) for target in inner.get("targets", ()))


def test_every_metric_that_a_rule_or_panel_asks_for_is_exported() -> None:
    histograms = [metric.name for metric in METRICS if metric.kind == "histogram"]
    histograms += [family.name for family in self_metrics.REGISTRY.collect() if family.type == "histogram"]
    known = exported() | {f"{name}_{part}" for name in histograms for part in ("bucket", "sum", "count")}
    known |= {rule["record"] for rule in rules() if "record" in rule}
    questions = list(asked_for())
    assert {"executive", "on-call", "debug", "compare"} <= {where.partition(":")[0] for where, _ in questions}
    assert [] == [(where, name) for where, expr in questions for name in METRIC.findall(expr) if name not in known]


def test_every_limit_is_counted_from_the_start() -> None:
    """One that appears with its first refusal is no increase to Prometheus."""
    rows = re.findall(r"^\| (`[^|]*) \|", section(DOCS / "operate.md", "Limits"), re.MULTILINE)
    described = {name for row in rows for name in re.findall(r"`([^`]+)`", row)} - {"limit"}
    assert described | {"storage"} == set(self_metrics.LIMITS)


def test_every_setting_is_described_and_no_other() -> None:
    readers = (*tree.modules(tree.AGENT).values(), *tree.modules(tree.SERVER).values())
    read = {name for path in readers for constant in constants(path) for name in SETTING.findall(constant)}
    prefix = "AMMETER_SERVER_"
    named = {name for name in read if not name.endswith("_")} | {prefix + name for name, _ in READERS.values()}
    assert sorted(named) == sorted(set(first_cells((DOCS / "settings.md").read_text())))


def test_every_question_that_the_collector_answers_is_described_and_no_other(tmp_path: Path) -> None:
    app = create_app(Settings(database_url=f"sqlite:///{tmp_path / 'collector.db'}"))
    app.state.context.store.close()
    answered = [f"{method.upper()} {path}" for path, several in app.openapi()["paths"].items() for method in several]
    described = [cell for cell in first_cells((DOCS / "api.md").read_text()) if re.match(r"[A-Z]+ /", cell)]
    assert sorted(answered) == sorted(described)


def test_every_file_that_the_architecture_names_exists() -> None:
    named = re.findall(r"`((?:agent|server)/[\w./-]+\.\w+)`", (DOCS / "architecture.md").read_text())
    assert 30 <= len(named)
    assert [] == [name for name in named if not (tree.ROOT / name).is_file()]


@pytest.mark.parametrize("page", sorted((*DOCS.glob("*.md"), README)), ids=lambda page: page.stem)
def test_the_pages_are_wrapped_but_for_tables_and_code(page: Path) -> None:
    prose = re.sub(r"^ *```.*?^ *```", "", page.read_text(), flags=re.DOTALL | re.MULTILINE)
    assert [] == [line for line in prose.splitlines() if len(line) > 100 and not line.startswith("|")]


def test_every_decision_is_in_the_index() -> None:
    listed = first_links((DOCS / "decisions" / "README.md").read_text())
    assert sorted(path.name for path in (DOCS / "decisions").glob("0*.md")) == listed


def first_links(text: str) -> list[str]:
    """The targets of the links that begin the rows of the tables."""
    return re.findall(r"^\| \[[^\]]+\]\(([^)]+)\) \|", text, re.MULTILINE)


@pytest.mark.parametrize(
    ("document", "figures"),
    [(README, readme.figures), (readme.SCALING, lambda: readme.table(readme.path_of("fleet")))],
    ids=["README.md", "scaling.md"],
)
def test_the_figures_in_a_document_are_those_of_the_result_files(document: Path, figures: Callable[[], str]) -> None:
    _, _, rest = document.read_text().partition(readme.BEGIN)
    shown, end, _ = rest.partition(readme.END)
    assert end, f"{document.name} has lost the end of its figures"
    assert figures() == shown, "run: python -m bench.common.readme"


@pytest.mark.parametrize("result", ["agent", "collector", "paging", "zoo"])
def test_the_readme_has_a_figure_of_every_benchmark(result: str) -> None:
    rows = [line for line in readme.figures().splitlines() if f"(bench/results/{result}.md)" in line]
    assert [] != rows
    assert [] == [row for row in rows if not re.search(r"\d", row.split("|")[2])]


def test_the_readme_is_short() -> None:
    assert 150 >= len(README.read_text().splitlines())


def test_both_distributions_and_the_changelog_have_one_version() -> None:
    versions = {
        tomllib.loads((tree.ROOT / part / "pyproject.toml").read_text())["project"]["version"]
        for part in ("agent", "server")
    }
    assert {ammeter.__version__} == versions
    assert f"## {ammeter.__version__}" in (tree.ROOT / "CHANGELOG.md").read_text()


def test_images_have_the_version_of_the_distributions() -> None:
    deploy = tree.ROOT / "deploy"
    files = [tree.ROOT / "docker-compose.yml", *deploy.glob("*.Dockerfile"), *deploy.glob("kubernetes/*.yaml")]
    texts = [path.read_text() for path in files]
    tags = {tag for text in texts for tag in re.findall(r"\bammeter-(?:collector|shipper):(\d[\w.]*)", text)}
    tags |= {tag for text in texts for tag in re.findall(r"\bnewName: ammeter-\w+, newTag: ([\w.]+)", text)}
    assert {ammeter.__version__} == tags


def test_no_file_is_larger_than_a_repository_should_carry() -> None:
    assert [] == [str(path) for path in tree.tracked() if path.stat().st_size > 1_500_000]


def test_pictures_are_small() -> None:
    pictures = [path for path in (DOCS / "pictures").iterdir() if path.suffix in (".png", ".webp")]
    assert pictures
    assert [] == [path.name for path in pictures if path.stat().st_size > 300_000]


def test_nothing_is_left_for_later() -> None:
    words = re.compile(r"\b(?:TODO|FIXME|XXX)\b|raise NotImplementedError")
    kinds = (".py", ".js", ".css", ".html", ".sh")
    code = [path for path in tree.tracked() if path.suffix in kinds and not {"vendor", "house"} & set(path.parts)]
    assert [] == [str(path.relative_to(tree.ROOT)) for path in code if words.search(path.read_text())]

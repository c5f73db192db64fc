"""The navigation of the site. A page that no section names is in the last one."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, TypeAlias

from ammeter.verdicts import BY_FAMILY
from website.pages import title_of

Entry: TypeAlias = "str | dict[str, Any]"

USE = ("integrations", "notebooks", "schedulers", "checkpoints", "guards", "exporting", "importing")
COMMANDS = ("launch", "report", "preflight", "canary")


def navigation(pages: Mapping[str, bytes]) -> list[Entry]:
    """Returns the navigation in the form of mkdocs.yml.

    Args:
        pages: Path in the site -> content.
    """
    chosen: list[Entry] = [
        {"Home": "index.md"},
        {"Quickstart": "quickstart.md"},
        {
            "How it works": [
                *_files("architecture", "sampling", "asking", "glossary", "limitations"),
                _benchmarks(pages),
            ]
        },
        {"Verdicts": [*_files("verdicts", "verdict-pictures"), *_families(), "runbooks/checklist.md"]},
        {"Metrics": [*_files("metrics", "dashboards"), _alerts(pages)]},
        {"Recipes": [*_below("recipes/", pages), *_files(*USE)]},
        {"Operate": [*_files("operate", "scaling", "fleet", "secrets", "security")]},
        {
            "Reference": [
                *_files("settings", "api", "client", "protocol", "events"),
                {"Command line": _files(*COMMANDS)},
            ]
        },
        {"Decisions": _below("decisions/", pages)},
        {"FAQ": "faq.md"},
        {"Migration": "migration.md"},
        {"Changes": [*_files("changelog", "contributing")]},
    ]
    named = set(paths(chosen))
    rest: list[Entry] = [page for page in sorted(pages) if page.endswith(".md") and page not in named]
    return [*chosen, {"More": rest}] if rest else chosen


def paths(entries: Iterable[Entry]) -> Iterable[str]:
    """Yields the pages of a navigation."""
    for entry in entries:
        if isinstance(entry, str):
            yield entry
        else:
            for value in entry.values():
                yield from paths([value] if isinstance(value, str) else value)


def _files(*names: str) -> list[Entry]:
    return [f"{name}.md" for name in names]


def _below(folder: str, pages: Mapping[str, bytes]) -> list[Entry]:
    """The pages of a folder, its index first."""
    found = sorted(page for page in pages if page.startswith(folder) and page.endswith(".md"))
    return [*sorted(found, key=lambda page: not page.endswith("/index.md"))]


def _families() -> list[Entry]:
    return [
        {name.replace("_", " ").capitalize(): [{verdict: f"runbooks/{verdict}.md"} for verdict in verdicts]}
        for name, verdicts in BY_FAMILY.items()
    ]


def _alerts(pages: Mapping[str, bytes]) -> Entry:
    """The runbooks of alerts that are no verdicts."""
    verdicts = {f"runbooks/{verdict}.md" for verdicts in BY_FAMILY.values() for verdict in verdicts}
    alerts = [page for page in _below("runbooks/", pages) if page not in {*verdicts, "runbooks/checklist.md"}]
    return {"Alerts": alerts}


def _benchmarks(pages: Mapping[str, bytes]) -> Entry:
    results: list[Entry] = [{title_of(pages[str(page)]): page} for page in _below("bench/", pages)]
    return {"Benchmarks": results}

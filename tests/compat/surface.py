"""The public names of a tree, as plain data: what `public.json` of a release holds."""

from __future__ import annotations

import contextlib
import inspect
import io
import re
import tempfile
from collections.abc import Callable
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

from tests.compat.processes import Collector
from tests.compat.release import NEW

DOCS = Path(__file__).parents[2] / "docs"

Names = dict[str, Any]

OPTION = re.compile(r"(?<![\w-])--[a-z][a-z-]*")
METRIC_ROW = re.compile(r"^\| `(ammeter_\w+)` \| (\w+) \|(?: ([^|]*) \|)?", re.MULTILINE)


def read() -> Names:
    """Everything that a user, a program or a dashboard may rely on by name."""
    with tempfile.TemporaryDirectory() as folder:
        database_url = f"sqlite:///{folder}/collector.db"
        with Collector(NEW, Path(folder), database_url) as collector:
            api = operations(collector.ask("/openapi.json"))
    return {
        "python": python(),
        "commands": commands(),
        "settings": sorted(set(re.findall(r"^\| `(AMMETER_\w+)`", (DOCS / "settings.md").read_text(), re.MULTILINE))),
        "events": first_cells("events.md", "Events"),
        "columns": first_cells("events.md", "Columns"),
        "verdicts": first_cells("verdicts.md", "The verdicts"),
        "metrics": metrics(),
        "api": api,
    }


def python() -> Names:
    """What `ammeter` and `ammeter.guards` export: functions, constructors of guards, members of the run's handle."""
    import ammeter
    from ammeter import guards

    found: Names = {f"ammeter.{name}": None for name in ammeter.__all__}
    found["ammeter.watch"] = parameters(ammeter.watch)
    found["ammeter.Stopped"] = [parent.__name__ for parent in ammeter.Stopped.__mro__[1:]]
    for name in guards.__all__:
        guard = getattr(guards, name)
        found[f"ammeter.guards.{name}"] = None if issubclass(guard, Exception) else parameters(guard)
    for name, member in inspect.getmembers(ammeter.Run):
        if not name.startswith("_"):
            found[f"ammeter.Run.{name}"] = parameters(member) if inspect.isfunction(member) else None
    found |= {f"ammeter.Run.{name}": None for name in vars(ammeter.Run()) if not name.startswith("_")}
    return found


def parameters(function: Callable[..., Any]) -> list[list[str]]:
    """Each parameter as its name, its kind and its default, '' for none."""
    return [
        [name, parameter.kind.name, "" if parameter.default is parameter.empty else repr(parameter.default)]
        for name, parameter in inspect.signature(function).parameters.items()
        if name != "self"
    ]


def commands() -> dict[str, list[str]]:
    """Each command of both programs with its options, as --help has them."""
    found = {}
    for program in ("ammeter", "ammeter-server"):
        waiting: list[list[str]] = [[]]
        while waiting:
            words = waiting.pop()
            text = help_text(program, words)
            found[" ".join([program, *words])] = sorted(set(OPTION.findall(text)))
            waiting += [[*words, name] for name in subcommands(text)]
    return found


def help_text(program: str, words: list[str]) -> str:
    (entry,) = entry_points(group="console_scripts", name=program)
    output = io.StringIO()
    with contextlib.redirect_stdout(output), contextlib.suppress(SystemExit):
        entry.load()([*words, "--help"])
    return output.getvalue()


def subcommands(text: str) -> list[str]:
    """Names in the list of commands or actions of a help text."""
    (first, *_) = text.splitlines()
    if not re.search(r" (COMMAND|ACTION)( |$)", first) or "[options]" in first:
        return []
    return re.findall(r"^ {2,4}([a-z]+)(?= )", text, re.MULTILINE)


def first_cells(page: str, heading: str) -> list[str]:
    """Names in the first column of a section's tables. Other tests bind these tables to the code."""
    section = re.split(rf"^## {heading}.*$", (DOCS / page).read_text(), maxsplit=1, flags=re.MULTILINE)[1]
    section = re.split(r"^## ", section, maxsplit=1, flags=re.MULTILINE)[0]
    return sorted(set(re.findall(r"^\| `([^`]+)`", section, re.MULTILINE)))


def metrics() -> Names:
    """Each documented metric with its kind and labels."""
    rows = METRIC_ROW.findall((DOCS / "metrics.md").read_text())
    return {name: {"kind": kind, "labels": sorted(re.findall(r"`(\w+)`", labels))} for name, kind, labels in rows}


def operations(openapi: Names) -> Names:
    """Each operation with its parameters and the media types of its bodies."""
    return {
        f"{method.upper()} {path}": {
            "parameters": {
                f"{parameter['in']} {parameter['name']}": parameter.get("required", False)
                for parameter in operation.get("parameters", [])
            },
            "body": sorted(operation.get("requestBody", {}).get("content", {})),
            "answers": {code: sorted(answer.get("content", {})) for code, answer in operation["responses"].items()},
        }
        for path, methods in openapi["paths"].items()
        for method, operation in methods.items()
    }

"""Output of the demo: progress and incidents.

Progress is a live line on a terminal, and plain lines in a pipe.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from rich.console import Console
from rich.live import Live
from rich.panel import Panel
from rich.text import Text

STEPS_PER_LINE = 20
"""Minimum steps between two plain lines."""


class Show:
    """Prints the progress of a run.

    Text of the run is printed literally, never as markup.
    """

    def __init__(self, console: Console, live: Live | None) -> None:
        self.console = console
        self.live = live
        self._shown = -STEPS_PER_LINE

    def print_line(self, line: str) -> None:
        self.console.print(Text(line))

    def progress(self, run: dict[str, Any]) -> None:
        """Shows the last step: in place on a terminal, else every twentieth as a line."""
        step = run["last_step"]
        if step is None:
            return
        line = progress_line(run)
        if self.live is not None:
            self.live.update(Text(line, style="bold"))
        elif step - self._shown >= STEPS_PER_LINE:
            self._shown = step
            self.print_line(line)

    def incident(self, incident: dict[str, Any], page: str) -> None:
        """Shows an incident with its cause, its fix and a link."""
        lines = "\n".join(incident_lines(incident, page))
        if self.live is None:
            self.print_line(lines)
            return
        style = "red" if incident["severity"] == "page" else "yellow"
        self.console.print(Panel(Text(lines), border_style=style, expand=False), soft_wrap=False)


@contextmanager
def open_show() -> Iterator[Show]:
    console = Console(highlight=False, soft_wrap=True)
    if not console.is_terminal:
        yield Show(console, None)
        return
    with Live(Text("waiting for the first step"), console=console, refresh_per_second=8) as live:
        yield Show(console, live)


def progress_line(run: dict[str, Any]) -> str:
    latest, counters = run["latest"], run["counters"]
    facts = [f"step {run['last_step']:>5}"]
    facts += [f"{name} {_number(latest[name])}" for name in ("scale", "loss") if name in latest]
    return "   ".join([*facts, f"skipped {counters.get('skipped', 0)}"])


def incident_lines(incident: dict[str, Any], page: str) -> list[str]:
    where = incident["tensor"] or incident["module"] or incident["caller"]
    lines = [f"INCIDENT {incident['verdict']} ({incident['severity']}) at step {incident['first_step']}"]
    lines += [f"  where  {where}"] if where else []
    return [*lines, f"  cause  {incident['cause']}", f"  fix    {incident['fix']}", f"  page   {page}"]


def escalation_line(incident: dict[str, Any], before: str) -> str:
    return f"INCIDENT {incident['verdict']} is a {incident['severity']} now; it was a {before}"


def _number(value: float | str) -> str:
    return value if isinstance(value, str) else f"{value:.6g}"

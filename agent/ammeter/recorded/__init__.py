"""A recorded run as data frames of pandas or polars."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

from ammeter.environment.settings import settings
from ammeter.journal.find import find_run
from ammeter.recorded import libraries, recorded_run, tables
from ammeter.recorded.recorded_run import RecordedRun
from ammeter.report import notebook
from ammeter.report.diagnosis import ReportedFinding
from ammeter.report.notebook import RunReport

Library = Literal["pandas", "polars"]


class LoadedRun:
    """A recorded run: its settings, its values as frames, and its findings.

    Attributes:
        id, name, project: as the collector and the report show them.
        config, tags, environment: what watch() recorded with the run.
        path: the folder of its journals.
    """

    def __init__(self, run: RecordedRun) -> None:
        hello = run.hello
        self.id, self.name, self.project = hello.run, hello.name, hello.project
        self.config, self.tags, self.environment = hello.config, hello.tags, hello.environment
        self.path = run.path
        self._run = run

    def steps(self, to: Library = "pandas") -> Any:
        """Returns a row per step and rank, with a float32 column for each scalar that the run measured.

        An absent value is NaN in pandas and null in polars, where a measured NaN remains NaN.

        Raises:
            ImportError: the library is not installed.
        """
        return libraries.frame(tables.steps(self._run), to)

    def tensors(self, statistic: str | None = None, to: Library = "pandas") -> Any:
        """Returns a row per measured value of a tensor's statistic.

        Args:
            statistic: only this one, such as "grad.norm".
            to: the library.
        """
        return libraries.frame(tables.tensors(self._run, statistic), to)

    def events(self, to: Library = "pandas") -> Any:
        """Returns a row per event; `data` is JSON text, `text` its sentence in the report, if it has one."""
        return libraries.frame(tables.events(self._run), to)

    @property
    def findings(self) -> Sequence[ReportedFinding]:
        """What the verdicts find now, causes first."""
        return self.report().findings

    def report(self) -> RunReport:
        """Returns the report, as Run.report() does."""
        return notebook.report_of(self.path)

    def __repr__(self) -> str:
        return f"<ammeter.LoadedRun {self.name!r} {self.id}, {self._run.rows} rows, journal in {self.path}>"

    def _repr_html_(self) -> str:
        return notebook.short_html(self.path, f"{self._run.rows} rows, journal in {self.path}")


def load(run: str | os.PathLike[str], dir: str | os.PathLike[str] | None = None) -> LoadedRun:
    """Implements ammeter.load.

    Raises:
        ValueError: there is no such run, or it has no step yet.
    """
    folder = settings().dir if dir is None else Path(dir)
    return LoadedRun(recorded_run.load(find_run(os.fspath(run), folder)))

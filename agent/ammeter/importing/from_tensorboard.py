"""Reads a folder of TensorBoard event files, as its own reader does, without TensorFlow."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ammeter.export.errors import library
from ammeter.importing.history import History, ImportFailed, only

PARTS = frozenset({"train", "training", "val", "valid", "validation", "eval", "evaluation", "test", "dev"})
"""Names of folders that hold parts of one run, as Keras writes them; any other folder is a run."""


def read(target: str, run: str | None) -> History:
    """Returns the scalars of one run: those of a folder's event files, or of its parts.

    Raises:
        ImportFailed: there is no run, or there are several.
    """
    board, loading, tensors = library(
        "tensorboard",
        "tensorboard",
        "tensorboard.backend.event_processing.event_file_loader",
        "tensorboard.util.tensor_util",
        option="--from",
    )
    folder = Path(target) / run if run else Path(target)
    if not folder.is_dir():
        raise ImportFailed(f"{str(folder)!r} is not a folder; name the one with the event files")
    found = _chosen(folder)
    history = History(str(folder.resolve()), f"tensorboard {board.__version__}", name=folder.resolve().name)
    for part, files in found.items():
        for file in files:
            for event in loading.EventFileLoader(str(file)).Load():
                values = dict(_scalars(event, part, tensors))
                if values:
                    history.add(int(event.step), values, int(event.wall_time * 1e9))
    return history


def _chosen(folder: Path) -> dict[str, list[Path]]:
    """Returns the event files of the run by part, oldest first."""
    groups: dict[Path, list[Path]] = {}
    for file in sorted(folder.rglob("*tfevents*"), key=lambda path: (path.stat().st_mtime_ns, path.name)):
        groups.setdefault(file.parent.relative_to(folder), []).append(file)
    names = {str(path): path for path in sorted(groups)}
    if Path() in groups and len(groups) == 1:
        return {"": groups[Path()]}
    parts = {path for path in groups if path.name in PARTS and len(path.parts) == 1}
    if parts and parts == groups.keys() - {Path()}:
        return {"" if path == Path() else f"{path.name}/": files for path, files in groups.items()}
    chosen = only(names, "run", str(folder), "name one with --run")
    return {"": groups[names[chosen]]}


def _scalars(event: Any, part: str, tensors: Any) -> Iterator[tuple[str, float]]:
    """Yields tag and value of each scalar of an event; the reader has converted the older form."""
    for value in event.summary.value:
        if value.HasField("simple_value"):
            yield part + value.tag, value.simple_value
        elif value.HasField("tensor") and value.metadata.plugin_data.plugin_name in ("scalars", ""):
            numbers = tensors.make_ndarray(value.tensor)
            if numbers.size == 1 and numbers.dtype.kind in "fiu":
                yield part + value.tag, float(numbers.reshape(())[()])

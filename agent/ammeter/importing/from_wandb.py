"""Reads the file of an offline run of Weights & Biases."""

from __future__ import annotations

import json
import struct
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ammeter.export.errors import library
from ammeter.importing.history import History, ImportFailed, only

BLOCK_BYTES, FILE_HEADER, RECORD_HEADER = 32768, struct.Struct("<4sHB"), struct.Struct("<IHB")
"""The file is a log of LevelDB's format: blocks with parts of records, each with checksum, length and kind."""

MAGIC = b":W&B"
WHOLE, FIRST, MIDDLE, LAST = 1, 2, 3, 4


def read(target: str, run: str | None) -> History:
    """Returns the history of one run.

    Raises:
        ImportFailed: there is no run, or there are several, or the file is of another kind.
    """
    wandb, messages = library("wandb", "wandb", "wandb.proto.wandb_internal_pb2", option="--from")
    path = Path(target)
    files = [path] if path.is_file() else sorted(path.rglob("*.wandb"))
    wanted = [file for file in files if run is None or file.stem == f"run-{run}" or file.parent.name == run]
    file = only(wanted, "W&B offline run", target, "name one with --run")
    history = History(str(file.resolve()), f"wandb {wandb.__version__}")
    config: dict[str, Any] = {}
    for data in _records(file):
        record = messages.Record.FromString(data)
        kind = record.WhichOneof("record_type")
        if kind == "history":
            _add_row(history, record.history)
        elif kind == "run":
            config |= _config(record.run.config)
            history.name, history.project = record.run.display_name or record.run.run_id, record.run.project
            history.tags = dict.fromkeys(record.run.tags, "")
        elif kind == "config":
            config |= _config(record.config)
    history.config = {name: value for name, value in config.items() if not name.startswith("_")}
    return history


def _add_row(history: History, logged: Any) -> None:
    row = {item.key or "/".join(item.nested_key): item.value_json for item in logged.item}
    numbers = {name: value for name, text in row.items() if (value := _number(text)) is not None}
    step = numbers.get("_step", logged.step.num)
    time = numbers.get("_timestamp")
    values = {name: value for name, value in numbers.items() if not name.startswith("_")}
    if values:
        history.add(int(step), values, None if time is None else int(time * 1e9))


def _config(update: Any) -> dict[str, Any]:
    return {item.key or "/".join(item.nested_key): _plain(item.value_json) for item in update.update}


def _plain(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text


def _number(text: str) -> float | None:
    """Returns a number; None for text, images and other values."""
    value = _plain(text)
    if isinstance(value, str) and value in ("NaN", "Infinity", "-Infinity"):
        return float(value)
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None


def _records(file: Path) -> Iterator[bytes]:
    """Yields the records. The torn end of a run that was killed is left out.

    Raises:
        ImportFailed: the file is of another kind, or damaged.
    """
    data = file.read_bytes()
    if len(data) < FILE_HEADER.size or FILE_HEADER.unpack_from(data)[0] != MAGIC:
        raise ImportFailed(f"{str(file)!r} is no file of an offline run of W&B")
    at, parts = FILE_HEADER.size, b""
    while at + RECORD_HEADER.size <= len(data):
        left = BLOCK_BYTES - at % BLOCK_BYTES
        if left < RECORD_HEADER.size:
            at += left
            continue
        checksum, size, kind = RECORD_HEADER.unpack_from(data, at)
        at += RECORD_HEADER.size
        if at + size > len(data):
            return
        part = data[at : at + size]
        at += size
        if kind not in (WHOLE, FIRST, MIDDLE, LAST) or zlib.crc32(bytes((kind,)) + part) != checksum:
            raise ImportFailed(f"{str(file)!r} is damaged at byte {at}")
        parts = part if kind in (WHOLE, FIRST) else parts + part
        if kind in (WHOLE, LAST):
            yield parts
            parts = b""

"""Journals of recorded streams, and the report on them as JSON and as text."""

from __future__ import annotations

import json
import uuid
from pathlib import Path
from typing import Any

import msgspec
import pytest

from ammeter.__main__ import main
from ammeter.journal import Journal
from ammeter.wire.frames import Hello
from tests.agent.stream_builder import Stream

RUN = "5b0c6f0e-93a5-5c59-9b5f-0f5a3f1f7d11"


def written(stream: Stream, folder: Path, rank: int = 0, run: str = RUN, **fields: Any) -> Path:
    """The stream as a journal in <folder>/<run>/<stream>, whose writer has ended."""
    writer = Journal(folder / run / uuid.uuid4().hex)
    for frame in stream.frames:
        if isinstance(frame, Hello):
            writer.hello(msgspec.structs.replace(frame, run=run, stream=writer.folder.name, rank=rank, **fields))
        else:
            writer.append(frame)
    writer.close()
    return writer.folder


def as_json(capsys: pytest.CaptureFixture[str], *words: object) -> Any:
    main(["report", *map(str, words), "--json"])
    return json.loads(capsys.readouterr().out)


def as_text(capsys: pytest.CaptureFixture[str], *words: object) -> str:
    main(["report", *map(str, words)])
    return " ".join(capsys.readouterr().out.split())

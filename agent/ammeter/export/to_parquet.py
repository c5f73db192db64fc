"""Writes a run as one Parquet file: a row per step and rank, a float32 column per signal, null where none was read."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec

from ammeter.export.errors import library
from ammeter.export.new_target import new_file
from ammeter.export.written import Written
from ammeter.recorded.recorded_run import RecordedRun, Section

GROUP_VALUES = 4_000_000
"""Cells that are in memory until they are written as one row group: 16 MB, in which a column compresses well."""


def write(written: Written) -> None:
    """Writes the file."""
    arrow, parquet = library("parquet", "pyarrow", "pyarrow.parquet")
    with new_file(written.target, written.force) as draft:
        schema = _schema(arrow, written.run)
        with parquet.ParquetWriter(draft, schema, compression="zstd") as writer:
            for table in _groups(arrow, schema, _sections(written)):
                writer.write_table(table)


def _sections(written: Written) -> Iterator[Section]:
    for stream in written.run.streams:
        yield from written.read(stream)


def _schema(arrow: Any, run: RecordedRun) -> Any:
    """Returns the schema. Its metadata say which run it is, those of a column what the signal is."""
    index = [
        arrow.field("step", arrow.int64(), nullable=False),
        arrow.field("time", arrow.timestamp("ns", tz="UTC"), nullable=False),
        arrow.field("rank", arrow.int32()),
        arrow.field("host", arrow.string()),
        arrow.field("stream", arrow.string()),
    ]
    signals = [
        arrow.field(name, arrow.float32(), metadata={"meaning": signal.meaning} if signal.meaning else None)
        for name, signal in run.signals.items()
    ]
    hello = run.hello
    texts = {"run": hello.run, "name": hello.name, "project": hello.project}
    maps = {"config": hello.config, "tags": hello.tags, "environment": hello.environment}
    metadata = texts | {name: msgspec.json.encode(value).decode() for name, value in maps.items()}
    return arrow.schema([*index, *signals], {f"ammeter.{name}": text for name, text in metadata.items()})


def _groups(arrow: Any, schema: Any, sections: Iterator[Section]) -> Iterator[Any]:
    """Joins sections to tables of about GROUP_VALUES cells."""
    tables: list[Any] = []
    for section in sections:
        tables.append(_table(arrow, schema, section))
        if sum(table.num_rows for table in tables) * len(schema) >= GROUP_VALUES:
            yield arrow.concat_tables(tables)
            tables = []
    if tables:
        yield arrow.concat_tables(tables)


def _table(arrow: Any, schema: Any, section: Section) -> Any:
    size, stream = len(section), section.stream
    index = [
        arrow.array(section.steps, arrow.int64()),
        arrow.array(section.times, arrow.timestamp("ns", tz="UTC")),
        *(
            arrow.repeat(arrow.scalar(value, kind), size)
            for value, kind in (
                (stream.rank, arrow.int32()),
                (stream.hello.host, arrow.string()),
                (stream.hello.stream, arrow.string()),
            )
        ),
    ]
    absent = arrow.nulls(size, arrow.float32())
    signals = [
        arrow.array(section.columns[name], arrow.float32(), mask=~section.masks[name], from_pandas=False)
        if name in section.columns
        else absent
        for name in schema.names[len(index) :]
    ]
    return arrow.table([*index, *signals], schema=schema)

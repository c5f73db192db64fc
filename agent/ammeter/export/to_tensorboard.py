"""Writes a run as TensorBoard event files, one folder per stream, without TensorFlow."""

from __future__ import annotations

from contextlib import closing

from ammeter.export.errors import library
from ammeter.export.new_target import new_folder
from ammeter.export.written import Written

QUEUE_EVENTS = 1000
"""Events that wait for the thread that writes them; each is a row of a few kilobytes."""


def write(written: Written) -> None:
    """Writes an event per row, with its step, its time and its values as float32."""
    writers, events, summaries = library(
        "tensorboard",
        "tensorboard.summary.writer.event_file_writer",
        "tensorboard.compat.proto.event_pb2",
        "tensorboard.compat.proto.summary_pb2",
    )
    with new_folder(written.target) as folder:
        for stream in written.run.streams:
            path = folder / (stream.prefix.rstrip("/") or "rank_0")
            with closing(writers.EventFileWriter(str(path), max_queue_size=QUEUE_EVENTS)) as writer:
                for section in written.read(stream):
                    for step, time, values in section.records():
                        numbers = [
                            summaries.Summary.Value(tag=tag, simple_value=value) for tag, value in values.items()
                        ]
                        summary = summaries.Summary(value=numbers)
                        writer.add_event(events.Event(wall_time=time / 1e9, step=step, summary=summary))
                writer.flush()  # raises what the thread that writes has met

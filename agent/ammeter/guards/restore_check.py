"""Reads a checkpoint back: python -m ammeter.guards.restore_check PATH [--written TIME] [--trained].

Prints one line of JSON. The process has the lowest priority, one thread, an address space of twice the checkpoint's
size plus a few GiB, and a time limit of a minute plus one for every GiB. Files are mapped or read in pieces, so it does
not compete with training for memory.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import signal
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from time import monotonic, perf_counter, sleep
from types import MappingProxyType
from typing import Any

import torch

from ammeter.inspection.examination import examine
from ammeter.inspection.inspected import DISTRIBUTED, Inspected
from ammeter.inspection.place import NotJudged, Place, Unreachable
from ammeter.inspection.trained_tensors import Shapes, absent_tensors

BASE_SECONDS, SECONDS_PER_GIB = 60, 60
"""Seconds for the import of torch and a small file, and for each GiB."""

SPARE_BYTES = 16 * 2**30
"""Address space beyond twice the file: torch's libraries map several GiB that they never touch."""

UPLOAD_SECONDS = 600.0
"""How long a file may take to appear in its store after it was saved: 60 GB at 100 MB/s."""

UPLOAD_POLL_SECONDS = 2.0
"""Time between two questions to the store whether the file is there."""

CLOCK_SECONDS = 5.0
"""Difference between the clocks of this host and of a store, whose times are whole seconds."""


def main(argv: list[str]) -> int:
    options = _arguments(argv)
    began = perf_counter()
    try:
        trained = _shapes(json.load(sys.stdin)) if options.trained else {}
        result = restore(_prepared(options.path, options.written), trained)
    except (Unreachable, NotJudged) as error:
        result = {"outcome": "skipped", "reason": str(error)}
    except OSError as error:
        result = {"outcome": "skipped", "reason": f"{type(error).__name__}: {error.strerror}"}
    except MemoryError:
        result = {"outcome": "skipped", "reason": "reading it needs more memory than the limit allows"}
    print(json.dumps({**result, "seconds": round(perf_counter() - began, 3)}))
    return 0


def restore(place: Place, trained: Shapes = MappingProxyType({})) -> dict[str, Any]:
    """Checks that a checkpoint loads, that every number is finite, and that it has the tensors of the run.

    outcome: `passed` if it loads with weights_only=True and every number is finite, `failed` if not. contents: what it
    contains. absent: which tensors that the run trains it lacks, '' if none.

    Args:
        trained: name -> shape of the tensors that the run trains.

    Raises:
        Unreachable, NotJudged, OSError, MemoryError: it cannot be judged.
    """
    found = examine(place)
    result = {"outcome": "passed" if found.is_sound else "failed", "reason": found.reason}
    if found.broken or found.unread:
        return result
    return {**result, **_described(found), "absent": absent_tensors(found.weights, trained)}


def _prepared(path: str, written: float | None) -> Place:
    """The place of a checkpoint that is there, in a process with limits that suit its size."""
    _limit_seconds(BASE_SECONDS + UPLOAD_SECONDS)
    place = Place(path)
    if not place.is_local:
        await_upload(place, written)
    _limit_resources(place.size())
    return place


def _described(found: Inspected) -> dict[str, Any]:
    contents = found.contents.plain() if found.contents else {}
    return {"bytes": found.bytes, "tensors": found.tensors, "format": found.format, "contents": contents}


def _shapes(named: dict[str, list[int]]) -> Shapes:
    return {name: tuple(shape) for name, shape in named.items()}


def await_upload(place: Place, written: float | None) -> None:
    """Waits until a store has the file. A program saves while the upload has only begun.

    Args:
        written: when the program began to write it, in seconds since the epoch; an older file in a store is that of an
            earlier save.

    Raises:
        Unreachable, NotJudged: the store has none, or only that of an earlier save.
    """
    deadline = monotonic() + UPLOAD_SECONDS
    while not _is_uploaded(place, written):
        if monotonic() > deadline:
            raise NotJudged(f"after {UPLOAD_SECONDS:.0f} s the store has no file that is as new as the save")
        sleep(UPLOAD_POLL_SECONDS)


def _is_uploaded(place: Place, written: float | None) -> bool:
    place.storage.invalidate_cache()
    if not place.exists():
        return False
    modified = None if written is None or place.is_folder() else place.modified()
    return written is None or modified is None or modified >= written - CLOCK_SECONDS


def _limit_seconds(seconds: float) -> None:
    signal.alarm(int(seconds))


def _limit_resources(size: int) -> None:
    """Limits the resources of this process."""
    _limit_seconds(BASE_SECONDS + SECONDS_PER_GIB * (size // 2**30))
    os.nice(19)
    torch.set_num_threads(1)
    limit = 2 * size + SPARE_BYTES
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))


def compare(result: dict[str, Any], saved: dict[str, Any]) -> dict[str, Any]:
    """Compares the read contents with those at saving: elements per dtype, optimizer and scaler.

    What a rank saved is a part of a distributed checkpoint.
    """
    if result["outcome"] != "passed":
        return result
    of_all_ranks = result.get("format") == DISTRIBUTED
    if not of_all_ranks and saved.get("bytes") is not None and result.get("bytes") != saved["bytes"]:
        return {**result, "outcome": "skipped", "reason": "the file was replaced before it was read"}
    difference = _difference(saved.get("contents") or {}, result["contents"], of_all_ranks)
    if difference:
        return {**result, "outcome": "failed", "reason": difference}
    missing = [str(part) for part in saved.get("missing") or ()]
    lacks = [*missing, *([result["absent"]] if result.get("absent") and "weights" not in missing else [])]
    if lacks:
        reason = f"the file loads and is finite, but lacks {', '.join(lacks)}"
        return {**result, "outcome": "partial", "reason": reason}
    return result


def _difference(saved: Mapping[str, Any], read: Mapping[str, Any], of_all_ranks: bool) -> str:
    own, found = Counter(saved.get("weights") or {}), Counter(read["weights"])
    if own != found and not (of_all_ranks and own <= found):
        return "the file's weights differ from the saved ones in dtype or number of elements"
    lost = [name for name in ("optimizer", "scaler") if saved.get(name) and not read.get(name)]
    return f"the saved {' and '.join(lost)} was not read back" if lost else ""


def _arguments(argv: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("path")
    parser.add_argument("--written", type=float)
    parser.add_argument("--trained", action="store_true", help="their names and shapes follow on stdin, as JSON")
    return parser.parse_args(argv)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

"""`ammeter checkpoint PATH`: what a checkpoint contains, and whether it can be loaded."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from ammeter.wire import printable

EXIT_WHOLE, EXIT_BROKEN, EXIT_NOT_READ = 0, 1, 2


def main(words: Sequence[str]) -> int:
    """Runs the command.

    Exit code: 0 if the checkpoint is whole and finite, 1 if not, 2 if it cannot be read.
    """
    options = _parser().parse_args(words)
    if not options.path:
        return _refuse("PATH is empty; name a file or a folder")
    try:
        from ammeter.inspection import access, examination, page
        from ammeter.inspection.place import NotJudged, Place, Unreachable
    except ImportError as error:
        return _refuse(f"{error}; use the Python that trains")
    try:
        place = Place(options.path)
        found, allowed = examination.examine(place), access.access_to(place)
    except (Unreachable, NotJudged, OSError, MemoryError) as error:
        return _refuse(str(error) or "it needs more memory than there is")
    if options.json:
        print(printable.json(page.document(options.path, found, allowed)))
    else:
        for line in page.lines(options.path, found, allowed):
            print(printable.line(line))
    return EXIT_NOT_READ if found.unread else EXIT_WHOLE if found.is_sound else EXIT_BROKEN


def _refuse(reason: str) -> int:
    print(f"ammeter checkpoint: {printable.line(reason)}", file=sys.stderr)
    return EXIT_NOT_READ


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="ammeter checkpoint",
        description="Reads a checkpoint and says what it contains, whether it is whole, whether every number in it is"
        " finite, and who can read it.",
        epilog="Exit code: 0 whole and finite, 1 broken or not finite, 2 it cannot be read.",
    )
    parser.add_argument(
        "path",
        metavar="PATH",
        help="a file of torch.save or safetensors, or a folder of torch.distributed.checkpoint; on this machine, or"
        " s3://, gs:// or any other storage of fsspec whose library is installed",
    )
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    return parser

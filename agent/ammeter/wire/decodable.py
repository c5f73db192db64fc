"""Prepares classes for decoding while only one thread runs.

msgspec learns the fields of a class when it is first asked to decode one. A second thread that decodes one meanwhile
reads what is not there yet, and the process ends with a segmentation fault (msgspec 0.22.0).
"""

from __future__ import annotations

from typing import TypeVar

import msgspec

T = TypeVar("T", bound=type[msgspec.Struct])


def decodable(kind: T) -> T:
    """Prepares a class, and the classes of its fields, when its module is imported. A class decorator."""
    msgspec.json.Decoder(kind)
    return kind

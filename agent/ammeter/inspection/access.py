"""Who can read a checkpoint, and whether its storage encrypts it."""

from __future__ import annotations

import stat
from dataclasses import dataclass
from typing import Any

from ammeter.inspection.place import Place, Unreachable
from ammeter.probes.checkpoint.files import size_and_exposure

NOT_KNOWN = "not known"

_ENCRYPTION_KEYS = ("ServerSideEncryption", "SSEKMSKeyId", "SSECustomerAlgorithm", "kmsKeyName")
"""What S3 and Google Cloud Storage call the encryption of an object."""


@dataclass(frozen=True)
class Access:
    """Permissions and encryption, as far as the storage says.

    Attributes:
        mode: octal permissions, '' in a store, whose rules are the account's.
        world_readable: whether the mode lets everybody read; None in a store.
        exposed: 'read' and 'replace', as far as other people on this machine can do it.
        by: who they are.
        encryption: the store's name of it, or NOT_KNOWN.
    """

    mode: str
    world_readable: bool | None
    exposed: list[str]
    by: str
    encryption: str


def access_to(place: Place) -> Access:
    if place.is_local:
        facts = size_and_exposure(place.path)
        mode = str(facts["mode"])
        return Access(mode, bool(int(mode or "0", 8) & stat.S_IROTH), facts["exposed"], facts["by"], NOT_KNOWN)
    file = place
    if place.is_folder():
        file = next((place.inside(name) for name in sorted(place.sizes())), place)
    return Access("", None, [], "", _encryption(file))


def _encryption(file: Place) -> str:
    facts = _description(file)
    return " ".join(str(facts[key]) for key in _ENCRYPTION_KEYS if facts.get(key)) or NOT_KNOWN


def _description(file: Place) -> dict[str, Any]:
    """What the store says of an object. s3fs leaves the encryption out of it, and is asked for the header."""
    try:
        info = file.info()
        if not any(info.get(key) for key in _ENCRYPTION_KEYS) and hasattr(file.storage, "call_s3"):
            bucket, _, key = file.path.partition("/")
            return dict(file.storage.call_s3("head_object", Bucket=bucket, Key=key))
    except (Unreachable, OSError, ValueError, TypeError):
        return {}
    return info

"""Makes a database of the collector, and damages files."""

from __future__ import annotations

import os
import random
from pathlib import Path

from ammeter_server.db import connect, migrations


def made(file: Path) -> Path:
    store = connect(f"sqlite:///{file}")
    migrations.migrate(store)
    store.close()
    return file


def overwrite(file: Path, begin: int) -> None:
    """Random bytes from there on, as a disk that fails might write them."""
    chance = random.Random(1)
    with file.open("r+b") as pages:
        size = os.fstat(pages.fileno()).st_size
        pages.seek(begin)
        pages.write(chance.randbytes(max(0, size - begin)))

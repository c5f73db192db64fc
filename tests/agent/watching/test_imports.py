"""What watch() imports is defined quickly."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

PROGRAM = """
import dataclasses, sys, torch
define, defined = dataclasses._process_class, []

def counted(cls, *args):
    defined.append(f"{cls.__module__}.{cls.__qualname__}")
    return define(cls, *args)

dataclasses._process_class = counted
import ammeter
model = torch.nn.Linear(2, 2)
ammeter.watch(model, torch.optim.SGD(model.parameters(), 0.1), dir=sys.argv[1]).close()

@dataclasses.dataclass
class Control: ...

print([name for name in defined if name.startswith(("ammeter", "__main__"))])
"""


def test_no_class_that_watch_imports_is_a_dataclass(tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM, str(tmp_path)], capture_output=True, text=True, check=True)
    assert "['__main__.Control']" == done.stdout.strip()

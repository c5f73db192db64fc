"""The process in which the user's model runs: `python -m ammeter.preflight.worker TASK RESULT_FILE ARGUMENTS`."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

from ammeter.preflight.factory import BadFactory
from ammeter.torch_hooks import call_site
from ammeter.wire import printable


def main(words: list[str]) -> int:
    """Runs one task and writes its result, or why there is none."""
    task, file, arguments = words
    try:
        result = _run(task, json.loads(arguments))
    except BadFactory as error:
        result = {"refused": str(error)}
    except MemoryError as error:
        result = {"raised": f"MemoryError: {error}", "memory": True}
    except Exception as error:  # noqa: BLE001 - it is the user's model, and its error is the result
        at = call_site.line_in(error.__traceback__)
        text = f"{type(error).__name__}: {error}" + (f" (at {at})" if at else "")
        result = {"raised": text, "memory": type(error).__name__ == "OutOfMemoryError"}
    temporary = Path(f"{file}.new")
    temporary.write_text(printable.json(result), "utf-8")
    os.replace(temporary, file)
    return 0


def _run(task: str, arguments: dict[str, Any]) -> dict[str, Any]:
    if task == "stress":
        from ammeter.preflight.stress import judgement

        return judgement.of_factory(**arguments)
    if task == "training":
        from ammeter.preflight.precision_map import training

        return training.of_factory(**arguments)
    raise ValueError(f"there is no task {task!r}; use stress or training")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

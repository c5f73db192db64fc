"""Everything a run needs to go on exactly where it was, in one file that is whole or absent and only its owner's."""

import os
import random
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import Any

import torch

Parts = dict[str, Any]  # whatever has state_dict() and load_state_dict(): model, optimizer, scheduler, scaler
Recipe = dict[str, str | int | float]


def save(path: Path, parts: Parts, progress: dict[str, int], recipe: Recipe) -> None:
    """Write the state of all parts, how far the run is and what it is made of."""
    state = {name: part.state_dict() for name, part in parts.items()}
    write(path, {"parts": state, "progress": progress, "recipe": recipe, "random": random_state()})


def restore(path: Path, parts: Parts, recipe: Recipe) -> dict[str, int]:
    """Put every part and every random generator where it was; what is handed back says how far the run is.

    Raises ValueError where the run was made by another recipe: it would go on, but as another run.
    """
    saved = torch.load(path, map_location="cpu", weights_only=True)
    for name, value in recipe.items():
        if saved["recipe"][name] != value:
            raise ValueError(
                f"{path} was made with --{name} {saved['recipe'][name]}, not {value}; "
                f"use --{name} {saved['recipe'][name]}, or another --checkpoint."
            )
    for name, part in parts.items():
        part.load_state_dict(saved["parts"][name])
    restore_random(saved["random"])
    progress: dict[str, int] = saved["progress"]
    return progress


def write(path: Path, state: dict[str, Any]) -> None:
    """All of it, or the file that was there before: never half. Mode 0600, whatever the umask."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with NamedTemporaryFile(dir=path.parent, prefix=f".{path.name}.", delete=False) as file:  # made with 0600
        try:
            torch.save(state, file)
            file.flush()
            os.fsync(file.fileno())
            os.replace(file.name, path)
        except BaseException:
            os.unlink(file.name)
            raise
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)  # until then a power cut can undo the rename
    finally:
        os.close(folder)


def random_state() -> dict[str, Any]:
    """Where every generator stands that training may draw from."""
    cuda = torch.cuda.get_rng_state_all() if torch.cuda.is_available() else []
    return {"python": random.getstate(), "torch": torch.get_rng_state(), "cuda": cuda}


def restore_random(state: dict[str, Any]) -> None:
    random.setstate(state["python"])
    torch.set_rng_state(state["torch"])
    if torch.cuda.is_available() and state["cuda"]:  # a run may also go on without the GPU it began on
        torch.cuda.set_rng_state_all(state["cuda"])

"""Runs notebooks in a real kernel, in a process of its own."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

from tests.parts import library


def executed(notebook: Any, folder: Path, **options: Any) -> Any:
    """Runs all cells in a kernel of this Python, whose journals are in `folder`/runs.

    options: of nbclient, such as `timeout` with `interrupt_on_timeout`.
    """
    library("ipykernel")
    managing = library("jupyter_client.manager")
    client = library("nbclient").NotebookClient(
        notebook, **{"timeout": 120, "kernel_manager_class": managing.AsyncKernelManager, **options}
    )
    client.km = client.create_kernel_manager()
    client.km._kernel_spec = library("jupyter_client.kernelspec").KernelSpec(
        argv=[sys.executable, "-m", "ipykernel_launcher", "-f", "{connection_file}"], display_name="", language="python"
    )
    environment = {**os.environ, "AMMETER_DIR": str(folder / "runs"), "IPYTHONDIR": str(folder / "ipython")}
    with client.setup_kernel(env=environment, cwd=str(folder)):
        for index, cell in enumerate(notebook.cells):
            client.execute_cell(cell, index)
    return notebook


def printed(cell: Any) -> str:
    """What a cell prints."""
    return "".join(output.text for output in cell.outputs if output.get("name") == "stdout")

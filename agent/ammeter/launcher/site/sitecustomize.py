"""Entry point of every Python process below `ammeter run`, which puts it first on PYTHONPATH.

The work is done in _ammeter_startup.py, which a Python with ammeter installed has already imported. No other file may
be in this folder, and any Python 3 must be able to read this one.
"""
# mypy: allow-untyped-defs, allow-untyped-calls

import os
import sys


def _start():
    """Imports _ammeter_startup.py, which is beside the package that contains this folder."""
    root = os.path.dirname(os.path.abspath(__file__))
    for _ in range(3):
        root = os.path.dirname(root)
    if "_ammeter_startup" in sys.modules:
        return
    sys.path.insert(0, root)
    try:
        __import__("_ammeter_startup")
    except Exception as error:  # noqa: BLE001 - the promise: the program runs, watched or not
        if sys.stderr is not None:
            sys.stderr.write(f"ammeter: this program is not watched: {error}. It runs as without Ammeter.\n")
    finally:
        sys.path.remove(root)


def _import_next():
    """Imports the sitecustomize of the user or the system that would run without this one."""
    own_folder = os.path.dirname(__file__)
    sys.path[:] = [path for path in sys.path if path != own_folder]
    own_module = sys.modules.pop(__name__)
    try:
        __import__(__name__)
    except ImportError as error:
        if error.name != __name__:
            raise
    finally:
        sys.modules.setdefault(__name__, own_module)


_start()
_import_next()

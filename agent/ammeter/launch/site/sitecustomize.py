"""Stands first on PYTHONPATH while `ammeter run` runs a command; every Python below it begins here.

It waits for torch to be made ready for training and imports nothing until then: a program without torch pays for a
comparison of names per import. No other file may stand in this folder, and any Python 3 must be able to read this.
"""
# mypy: allow-untyped-defs, allow-untyped-calls, no-check-untyped-defs

import os
import sys

READY = "torch._dynamo"
"""The package that torch imports for its first optimizer, in whatever process trains."""


class _Waits:
    """A finder that finds nothing, but hears when the package is asked for."""

    heard = False

    def find_spec(self, name, path=None, target=None):
        if name != READY or self.heard:
            return None
        self.heard = True
        sys.meta_path[:] = [each for each in sys.meta_path if each is not self]
        for finder in list(sys.meta_path):
            found = finder.find_spec(name, path, target) if hasattr(finder, "find_spec") else None
            if found is not None:
                if hasattr(found.loader, "exec_module"):
                    found.loader = _Loads(found.loader)
                return found
        return None


class _Loads:
    """The package's own loader, and Ammeter behind it."""

    def __init__(self, loader):
        self._loader = loader

    def create_module(self, spec):
        return self._loader.create_module(spec)

    def exec_module(self, module):
        module.__spec__.loader = module.__loader__ = self._loader
        self._loader.exec_module(module)
        _arm()


def _arm():
    try:
        from ammeter import inside

        inside.arm()
    except Exception as error:  # noqa: BLE001 - the promise: the program runs, watched or not
        if os.environ.get("LOCAL_RANK", "0") == "0":
            remedy = "" if sys.version_info >= (3, 11) else "; it needs Python 3.11"
            said = "ammeter: {} is not watched: {}{}. The program runs on without it."
            sys.stderr.write(said.format(sys.executable, error, remedy) + "\n")


def _let_the_next_one_have_its_turn():
    """Another sitecustomize, of the user or the system, that would have been found without this one."""
    here = os.path.dirname(__file__)
    sys.path[:] = [each for each in sys.path if each != here]
    own = sys.modules.pop(__name__)
    try:
        __import__(__name__)
    except ImportError as error:
        if error.name != __name__:
            raise
    finally:
        sys.modules.setdefault(__name__, own)


sys.meta_path.insert(0, _Waits())
_let_the_next_one_have_its_turn()

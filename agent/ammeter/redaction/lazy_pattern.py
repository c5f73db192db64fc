"""Regular expressions that are compiled when they are first used.

Compiling all forms of secrets takes 9 ms, and the texts of most runs need two of them.
"""

from __future__ import annotations

import re
from typing import Any, cast


def pattern(regex: str, flags: int = 0) -> re.Pattern[str]:
    """Returns what behaves as re.compile(regex, flags)."""
    return cast("re.Pattern[str]", _Pattern(regex, flags))


class _Pattern:
    def __init__(self, regex: str, flags: int) -> None:
        self._regex, self._flags = regex, flags

    def __getattr__(self, name: str) -> Any:
        """Called once for each attribute of re.Pattern that is used."""
        value = getattr(re.compile(self._regex, self._flags), name)
        self.__dict__[name] = value
        return value

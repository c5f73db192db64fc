"""Every name that a script of the page imports exists where it is imported from: one that does not blanks the page."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.house.tree import SERVER

STATIC = SERVER / "web" / "static"
IMPORT = re.compile(r'^import \{([^}]*)\} from "\./([\w/.-]+)";', re.MULTILINE)
EXPORT = re.compile(r"^export (?:async )?(?:function\*?|class|const|let) (\w+)", re.MULTILINE)


@pytest.mark.parametrize("script", sorted(STATIC.glob("*.js")), ids=lambda path: path.name)
def test_imported_names_are_exported(script: Path) -> None:
    for names, source in IMPORT.findall(script.read_text()):
        exported = set(EXPORT.findall((STATIC / source).read_text()))
        assert {name.split(" as ")[0].strip() for name in names.split(",")} - {""} <= exported, source

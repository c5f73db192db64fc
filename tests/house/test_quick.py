"""What `--quick` selects for a changed file."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests import quick
from tests.quick import MAX_WHOLE_FILES, ROOT, TESTS, files_for, is_ignored

MANY = [TESTS / "server" / f"test_{number}.py" for number in range(MAX_WHOLE_FILES + 1)]
HOUSE = TESTS / "house" / "test_quick.py"


@pytest.fixture
def select(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Selects among two tests of each file; returns the files of those kept."""

    def select(files: Iterable[Path], selected: Iterable[Path], changed: Iterable[Path] = ()) -> list[Path]:
        monkeypatch.setattr(quick, "selected", lambda: frozenset(selected))
        monkeypatch.setattr(quick, "changed", lambda: tuple(changed))
        items: Any = [Item(file, is_long="long" in file.name) for file in files for _ in range(2)]
        quick.select(SimpleNamespace(hook=SimpleNamespace(pytest_deselected=lambda items: None)), items)  # type: ignore[arg-type]
        return [item.path for item in items]

    return select


class Item:
    def __init__(self, path: Path, is_long: bool) -> None:
        self.path, self._is_long = path, is_long

    def get_closest_marker(self, name: str) -> bool:
        return self._is_long and name == "long"


def test_a_source_file_leads_to_the_folder_that_mirrors_its_own() -> None:
    expected = set((TESTS / "trainer").rglob("test_*.py"))
    assert expected == set(files_for(ROOT / "trainer" / "data.py"))


def test_a_test_file_leads_to_itself() -> None:
    assert [TESTS / "trainer" / "test_data.py"] == list(files_for(TESTS / "trainer" / "test_data.py"))


def test_a_helper_leads_to_the_tests_that_import_it() -> None:
    found = set(files_for(TESTS / "e2e" / "faulty_proxy.py"))
    assert {TESTS / "e2e" / "test_exactly_once.py"} == found


def test_a_document_leads_to_the_house_tests_alone() -> None:
    assert [] == list(files_for(ROOT / "README.md"))
    assert not is_ignored(TESTS / "house" / "test_documents.py")


def test_all_tests_of_a_few_selected_files_run(select: Any) -> None:
    assert [HOUSE, HOUSE, MANY[0], MANY[0]] == select([HOUSE, MANY[0]], selected=[MANY[0]])
    few = MANY[:MAX_WHOLE_FILES]
    assert 2 * len(few) == len(select(few, selected=few))


def test_of_many_selected_files_the_first_tests_run_and_all_of_changed_files(select: Any) -> None:
    kept = select([HOUSE, *MANY], selected=MANY, changed=[MANY[1]])
    assert [HOUSE, HOUSE, MANY[0], MANY[1], MANY[1], *MANY[2:]] == kept


def test_without_a_change_the_first_test_of_each_file_that_is_not_slow_runs(select: Any) -> None:
    slow = [TESTS / "compat" / "test_upgrade.py", TESTS / "bench" / "zoo" / "test_main.py"]
    assert [HOUSE, *MANY] == select([HOUSE, *MANY, *slow], selected=[])


def test_a_long_file_runs_only_if_it_has_changed(select: Any) -> None:
    long = TESTS / "server" / "test_long.py"
    assert [MANY[0], MANY[0]] == select([long, MANY[0]], selected=[long, MANY[0]])
    assert [long, long] == select([long], selected=[long], changed=[long])

"""What `--quick` selects for a changed file."""

from __future__ import annotations

from tests.quick import ROOT, TESTS, files_for, is_ignored


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

from __future__ import annotations

from pathlib import Path

import pytest

from ammeter_server.db import citus as distribution
from ammeter_server.db import connect
from bench.collector import citus
from bench.collector.citus import Effort, Rates
from bench.collector.postgresql import server
from bench.collector.servers import MissingError
from tests.parts import missing

TINY = Effort(ranks=1, rows=((5, 10),), repeats=1)


@pytest.fixture(autouse=True)
def programs() -> None:
    if not list(Path("/usr/lib/postgresql").glob("*/bin/initdb")):
        missing("PostgreSQL is not installed; apt-get install postgresql to test on it")


@pytest.mark.parametrize("name", [citus.SQLITE, citus.POSTGRESQL])
def test_a_database_is_measured(name: str) -> None:
    rates = Rates()
    citus._measure_one(citus.STORES[name], rates, 1, 5, 10)
    assert min(rates.collector + rates.everything + rates.wall) > 0


def test_a_server_counts_its_cpu_and_has_no_citus_by_default() -> None:
    with server() as node:
        before = node.cpu_seconds()
        node.execute("SELECT sum(sqrt(number)) FROM generate_series(1, 2000000) AS number")
        assert node.cpu_seconds() > before
        store = connect(node.url)
        with store.reading() as connection:
            assert not distribution.is_installed(connection)
        store.close()


def test_a_cluster_is_measured() -> None:
    try:
        rates = citus.measure(TINY)
    except MissingError as error:
        pytest.skip(str(error))
    assert {(5, name) for name in citus.STORES} == set(rates)
    assert all(len(of.wall) == 1 for of in rates.values())


def test_the_table_has_the_median_and_the_extremes_of_the_repeats() -> None:
    rates = {(10, citus.SQLITE): Rates([1.0, 3.0, 2.0], [0.5, 0.25, 1.0], [4.0, 4.0, 5.0])}
    heading, row = citus.table(rates)
    assert len(heading) == len(row)
    assert ("10", "SQLite", "2.00 (1.00 to 3.00)", "0.50 (0.25 to 1.00)", "4.00 (4.00 to 5.00)") == row
    assert "| 10 | SQLite |" in citus.markdown([heading, row], "", TINY, "a machine")


def test_the_factor_is_that_of_the_shown_medians() -> None:
    rates = {(10, citus.POSTGRESQL): Rates([], [3.0], []), (10, citus.CITUS): Rates([], [2.0], [])}
    assert "1.5 (10 steps)" == citus.factors(rates)

from __future__ import annotations

import os
from pathlib import Path

import pytest

from deploy import compose
from deploy.place import Place, lay_ports

VARIABLES = {"AMMETER_DATABASE_PASSWORD": "d", "AMMETER_GRAFANA_PASSWORD": "g", "AMMETER_SECRETS": "./deploy/secrets"}
GIVEN = {"collector": 1001, "prometheus": 1002, "alertmanager": 1003, "pages": 1004, "database": 1005}


@pytest.fixture
def place(tmp_path: Path) -> Place:
    every = compose.services(VARIABLES)
    return Place(tmp_path, {service.name: service for service in every}, lay_ports(every, GIVEN))


@pytest.mark.parametrize(
    ("text", "here"),
    [
        ("http://alertmanager:9093", "http://127.0.0.1:1003"),
        ("--web.listen-address=0.0.0.0:9090", "--web.listen-address=127.0.0.1:1002"),
        ("postgresql://ammeter@database:5432/ammeter", "postgresql://ammeter@127.0.0.1:1005/ammeter"),
        ("8480", "1001"),
        ("0.0.0.0", "127.0.0.1"),
        ("90", "90"),
        ("https://pages.example:9099/", "https://pages.example:9099/"),
        ("127.0.0.1:7777", "127.0.0.1:7777"),
    ],
)
def test_an_address_of_the_stack_leads_to_the_port_it_has_here(place: Place, text: str, here: str) -> None:
    assert here == place.localized(place.services["collector"], text)


def test_a_path_leads_into_the_folder_and_what_only_looks_like_one_stays(place: Place) -> None:
    prometheus = place.services["prometheus"]
    inside = place.folder / "prometheus"
    assert f"--storage.tsdb.path={inside}/prometheus" == place.localized(prometheus, "--storage.tsdb.path=/prometheus")
    told = "--config.file=/etc/prometheus/prometheus.yaml"
    assert f"--config.file={inside}/etc/prometheus/prometheus.yaml" == place.localized(prometheus, told)
    assert "/etc/prometheus-old" == place.localized(prometheus, "/etc/prometheus-old")


def test_a_setting_that_names_a_missing_service_is_left_out(place: Place) -> None:
    without = Place(place.folder, place.services, place.ports, frozenset({"alertmanager"}))
    collector = place.services["collector"]
    gone = set(place.environment(collector)) - set(without.environment(collector))
    assert {"AMMETER_SERVER_ALERTMANAGER_URL"} == gone


def test_services_start_after_those_that_they_need(place: Place) -> None:
    order = list(place.services)
    assert [] == [
        service.name
        for service in place.services.values()
        if any(order.index(a) > order.index(service.name) for a in service.after)
    ]
    assert order.index("database") < order.index("migrate") < order.index("collector") < order.index("prometheus")


def test_ports_that_nobody_gave_are_free_ones_and_differ() -> None:
    every = compose.services(VARIABLES)
    ports = lay_ports(every, {"collector": 1001})
    assert {5432, 8480, 9090, 9093, 9099, 3000} == set(ports)
    assert 1001 == ports[8480]
    assert len(ports) == len({*ports.values()})


def test_a_file_has_its_addresses_and_paths_of_here(place: Place, tmp_path: Path) -> None:
    alertmanager = place.services["alertmanager"]
    place.lay_out(alertmanager)
    text = (tmp_path / "alertmanager/etc/alertmanager/alertmanager.yaml").read_text()
    assert "http://127.0.0.1:1004/page" in text
    assert "pages:9099" not in text
    assert os.path.isdir(tmp_path / "alertmanager/alertmanager")

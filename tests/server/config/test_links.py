from __future__ import annotations

import pytest

from ammeter_server.config.links import Links


def test_without_addresses_there_are_no_links_to_other_tools() -> None:
    links = Links("http://page")
    assert ("", "", "") == (links.board("r", "p"), links.silences({"run": "r"}), links.log({"run": "r"}))


def test_values_in_addresses_are_quoted() -> None:
    links = Links("http://page", grafana="https://g/", alertmanager="https://a/", logs="https://l/{name}?t={from}")
    assert "https://g/d/ammeter-debug?var-project=a%26b&var-run=r" == links.board("r", "a&b")
    assert "https://a/#/silences/new?filter=%7Brun%3D%22a%5C%22%5C%5Cb%22%7D" == links.silences({"run": 'a"\\b'})
    assert "https://l/a%2F..%20b?t=1" == links.log({"name": "a/.. b", "from": "1"})


@pytest.mark.parametrize("values", [{"host": "node-1", "job": ""}, {"host": "node-1"}])
def test_a_log_needs_every_value_of_its_address(values: dict[str, str]) -> None:
    assert "" == Links("http://page", logs="https://l/{host}/{job}").log(values)

"""Questions made up from the API's own description: every answer is one that it describes, and none is a fault."""

from __future__ import annotations

from collections.abc import Iterator
from tempfile import TemporaryDirectory
from typing import Any

import httpx
import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from schemathesis.specs.openapi.checks import positive_data_acceptance

from ammeter import wire
from ammeter_server import guesses, live
from ammeter_server.app import create_app
from ammeter_server.openapi import described
from ammeter_server.settings import Settings
from tests.server.callers import bearer
from tests.server.feeding import Stream, break_down, serving, train, wait_until

EXAMPLES = 12
"""Of each operation, of each kind: as described, and not as described."""

TOKEN = "f" * 40


@schemathesis.serializer(wire.CONTENT_TYPE)
def as_it_is(_: Any, value: Any) -> bytes:
    """A batch is bytes, whatever they are."""
    return bytes(value) if isinstance(value, bytes) else repr(value).encode()


class Asked:
    """A collector with a broken run, and its description."""

    def __init__(self, client: httpx.Client) -> None:
        stream = Stream(client, headers=bearer(TOKEN))
        train(stream, 0, 40)
        break_down(stream, 41, 60)
        stream.send()
        client.headers.update(bearer(TOKEN))
        found = wait_until(lambda: client.get(f"/api/v1/runs/{stream.run}/incidents").json()["items"])
        self.there = {"run": stream.run, "baseline": stream.run, "incident": found[0]["id"], "stream": "0" * 32}
        self.there |= {"name": "debug", "verdict": "run-lost"}
        self.schema = schemathesis.openapi.from_url(f"{client.base_url}/openapi.json", headers=bearer(TOKEN))


@pytest.fixture(scope="module")
def asked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Asked]:
    with pytest.MonkeyPatch.context() as patch, serving(tmp_path_factory.mktemp("openapi"), token=TOKEN) as client:
        patch.setattr(guesses, "MOST", 10**6)  # every question is also asked with wrong tokens
        patch.setattr(live, "LONGEST", 0.01)
        yield Asked(client)


def operations() -> list[tuple[str, str, str]]:
    """Every operation that the API describes; once more where something can be asked that may not be."""
    with TemporaryDirectory() as folder:
        paths = described(create_app(Settings(database_url=f"sqlite:///{folder}/c.db")))["paths"]
    found = [(method.upper(), path, how) for path, of_path in paths.items() for method, how in of_path.items()]
    wrong = [
        each for each in found if "requestBody" in each[2] or any(map(_can_be_wrong, each[2].get("parameters", ())))
    ]
    return [(*each[:2], "positive") for each in found] + [(*each[:2], "negative") for each in wrong]


def _can_be_wrong(operation: dict[str, Any]) -> bool:
    """Any text may stand in a path and in a header."""
    return "requestBody" in operation or any(each["in"] == "query" for each in operation.get("parameters", ()))


@pytest.mark.parametrize(("method", "path", "mode"), operations())
def test_no_question_gets_an_answer_that_is_not_described(asked: Asked, method: str, path: str, mode: str) -> None:
    cases = asked.schema[path][method].as_strategy(generation_mode=schemathesis.GenerationMode(mode))

    @given(cases, st.booleans())
    @settings(
        max_examples=EXAMPLES,
        deadline=None,
        phases=[Phase.generate],
        derandomize=True,
        database=None,
        suppress_health_check=list(HealthCheck),
    )
    def ask(case: Any, real: bool) -> None:
        if real and mode == "positive":
            case.path_parameters = {name: asked.there.get(name, given) for name, given in case.path_parameters.items()}
        case.call_and_validate(headers=bearer(TOKEN), excluded_checks=[positive_data_acceptance])

    ask()

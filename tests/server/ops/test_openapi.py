"""Questions made up from the API's own description: every answer is one that it describes, and none is a fault."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from tempfile import TemporaryDirectory
from typing import Any

import httpx
import numpy as np
import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from schemathesis.specs.openapi.checks import positive_data_acceptance

from ammeter.wire import codec, columns, frames
from ammeter.wire.frames import Batch, Bye, Event, Hello, Lost, Schema
from ammeter_server.api import live
from ammeter_server.app import create_app
from ammeter_server.auth import tokens
from ammeter_server.config.settings import Settings
from ammeter_server.db import connect
from ammeter_server.http.limits import token_guesses
from ammeter_server.ops.openapi import described
from tests.server.callers import bearer
from tests.server.feeding import BEGIN, SCHEMA, Stream, break_down, serving, train, wait_until

EXAMPLES = 12
"""Of each operation, of each kind: as described, and not as described."""

TOKEN = "f" * 40
FRAMES = "/api/v1/runs/{run}/streams/{stream}/frames"


@schemathesis.serializer(frames.CONTENT_TYPE)
def as_it_is(_: Any, value: Any) -> bytes:
    """A batch is bytes, whatever they are."""
    return bytes(value) if isinstance(value, bytes) else repr(value).encode()


def batches(run: str = "0" * 32, stream: str = "0" * 32) -> st.SearchStrategy[bytes]:
    """Bodies that a shipper may send, with a little wrong in some of them, and bytes."""
    hello = st.builds(
        Hello,
        run=st.just(run),
        stream=st.just(stream),
        schema=st.sampled_from([SCHEMA, Schema(("loss",))]),
        rank=st.integers(0, 3) | st.integers(),
        world_size=st.integers(1, 4) | st.integers(),
        started=st.sampled_from([0, 1, BEGIN]) | st.integers(),
        name=st.text(max_size=20),
        project=st.sampled_from(["demo", "other"]) | st.text(max_size=20),
        config=st.dictionaries(st.text(max_size=5), st.integers(-(2**63), 2**64 - 1) | st.text(max_size=5), max_size=3),
        tags=st.dictionaries(st.text(max_size=5), st.text(max_size=5), max_size=3),
    )
    moment = {"step": st.integers(-1, 90) | st.integers(-(2**63), 2**64 - 1), "time": st.integers(0, 2**63)}
    event = st.builds(
        Event, st.sampled_from(["step.skipped", "scaler.backoff"]) | st.text(max_size=9), data=TREES, **moment
    )
    count = st.integers(0, 9) | st.integers(-(2**63), 2**64 - 1)
    lost = st.builds(Lost, st.sampled_from(["torn", ""]), count, count)
    bye = st.builds(Bye, st.sampled_from(["closed", "lost"]), message=st.text(max_size=9), **moment)
    item = event | lost | st.builds(rows, st.integers(0, 50), st.integers(0, 9)) | bye
    gap = st.builds(Lost, st.just("torn"), count, count, st.sampled_from([0, 10]), st.sampled_from([10, 40]) | count)
    whole = st.builds(
        Batch,
        st.builds(lambda first, more: [*first, *more], st.lists(hello, max_size=1), st.lists(item, max_size=4)),
        st.lists(gap, max_size=1),
        backlog=st.integers(0, 99) | st.integers(-1, 2**64 - 1),
    )
    sound = st.builds(
        lambda items: Batch([Hello(run, stream, SCHEMA, started=BEGIN), *items]),
        st.lists(st.builds(Event, st.just("step.skipped"), st.integers(0, 50), st.just(BEGIN)), max_size=2),
    )
    more = st.builds(lambda step: Batch([Event("step.skipped", step, BEGIN), Lost("torn", 1)]), st.integers(0, 50))
    good = st.one_of(sound, more).map(codec.encode_batch)
    return st.one_of(good, good.map(bytes), good.map(bytes), whole.map(_encoded), st.binary(max_size=60))


TREES = st.dictionaries(
    st.text(max_size=4), st.recursive(st.integers(-(2**63), 2**64 - 1) | st.floats() | st.text(max_size=4), st.lists)
)


def rows(first: int, count: int) -> frames.Block:
    values = np.full(SCHEMA.width, 1.5, "<f4").tobytes()
    several = [frames.Steps(step, BEGIN + step, values) for step in range(first, first + max(1, count))]
    return columns.pack(columns.view(SCHEMA, several))


def _encoded(batch: Batch) -> bytes:
    """Of numbers that msgpack has no room for nothing is left."""
    try:
        return codec.encode_batch(batch)
    except (OverflowError, UnicodeEncodeError):
        return b""


schemathesis.openapi.media_type(frames.CONTENT_TYPE, batches())


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
        self.tokens = [TOKEN]
        self.schema = schemathesis.openapi.from_url(f"{client.base_url}/openapi.json", headers=bearer(TOKEN))


@pytest.fixture(scope="module")
def asked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Asked]:
    folder = tmp_path_factory.mktemp("openapi")
    with pytest.MonkeyPatch.context() as patch, serving(folder, token=TOKEN) as client:
        patch.setattr(token_guesses, "MAX_GUESSES", 10**6)  # every question is also asked with wrong tokens
        patch.setattr(live, "MAX_ANSWER_SECONDS", 0.01)
        asked = Asked(client)
        store = connect(f"sqlite:///{folder / 'collector.db'}")
        asked.tokens = [TOKEN, *(tokens.create(store, name, ("ingest",), name) for name in ("demo", "other"))]
        store.close()
        yield asked


def operations() -> list[tuple[str, str, str]]:
    """Every operation that the API describes; once more where something can be asked that may not be."""
    with TemporaryDirectory() as folder:
        paths = described(create_app(Settings(database_url=f"sqlite:///{folder}/c.db")))["paths"]
    found = [(method.upper(), path, how) for path, of_path in paths.items() for method, how in of_path.items()]
    wrong = [
        case for case in found if "requestBody" in case[2] or any(map(_can_be_wrong, case[2].get("parameters", ())))
    ]
    return [(*case[:2], "positive") for case in found] + [(*case[:2], "negative") for case in wrong]


def _can_be_wrong(operation: dict[str, Any]) -> bool:
    """Any text may stand in a path and in a header."""
    return "requestBody" in operation or any(
        parameter["in"] == "query" for parameter in operation.get("parameters", ())
    )


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


RUNS = ["5b0c6f0e-93a5-4c59-9b5f-0f5a3f1f7d11", "4c58b0ad-da8b-4cc6-bcea-c8f6bb43015b"]
STREAMS = [f"{number:032x}" for number in (1, 2)]


@st.composite
def requests(draw: st.DrawFn) -> tuple[str, str, bytes, int]:
    """(run, stream, body, which token), of a hello that names the stream more often than not."""
    run, stream = draw(st.sampled_from([*RUNS * 4, "no-run"])), draw(st.sampled_from(STREAMS))
    named = draw(st.sampled_from([run] * 9 + [RUNS[0]])), draw(st.sampled_from([stream] * 9 + [STREAMS[0]]))
    return run, stream, draw(batches(*named)), draw(st.sampled_from([0, 0, 1, 2]))


def test_no_batch_gets_an_answer_that_is_not_described(asked: Asked) -> None:
    operation = asked.schema[FRAMES]["POST"]
    reached = dict[tuple[str, str], int]()
    answered = Counter[int]()

    @given(
        requests(),
        st.sampled_from([0] * 9 + [-5, 5, 10**6]),
        st.sampled_from([0, 10] + [400] * 9 + [2**40, 2**63 - 1, 2**63, -(10**9)]),
        st.sampled_from([frames.CONTENT_TYPE] * 19 + ["application/json"]),
    )
    @settings(
        max_examples=200,
        deadline=None,
        phases=[Phase.generate],
        derandomize=True,
        database=None,
        suppress_health_check=list(HealthCheck),
    )
    def ask(request: tuple[str, str, bytes, int], beside: int, length: int, said: str) -> None:
        run, stream, body, whose = request
        begin = reached.get((run, stream), 0) + beside
        case = operation.Case(
            path_parameters={"run": run, "stream": stream},
            query={"offset": begin, "end": begin + length},
            body=body,
            media_type=frames.CONTENT_TYPE,
        )
        headers = {**bearer(asked.tokens[whose]), "Content-Type": said}
        answer = case.call_and_validate(headers=headers, excluded_checks=[positive_data_acceptance])
        answered[answer.status_code] += 1
        if answer.status_code == 200:
            reached[run, stream] = answer.json()["offset"]

    ask()
    assert {200, 400, 404, 409, 415, 422} <= set(answered), answered
    assert answered[200] > 20, answered
    assert max(answered) < 500

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import numpy.typing as npt
import pytest

from ammeter_server.curves.curve import Curve
from ammeter_server.curves.encoding import CHUNK_BYTES, FLOAT32, ChunkedResponse, answer
from tests.server.feeding import BEGIN, Stream, curves, serving, train

STEPS, TIMES = np.arange(3), BEGIN + np.arange(3) * 10**9


def curve(*values: float) -> Curve:
    return Curve(STEPS, TIMES, np.array(values, np.float32))


def arrays(body: bytes) -> list[tuple[dict[str, Any], list[npt.NDArray[Any]]]]:
    """(header, steps, times, values) of each item, as whoever knows only the description reads them."""
    begin = 4 + int.from_bytes(body[:4], "little")
    items = json.loads(body[4:begin])["items"]
    kinds = (("steps", "<i8"), ("times", "<f8"), ("values", "<f4"))
    found = []
    for item in items:
        found.append((item, [np.frombuffer(body, kind, item["points"], begin + item[name]) for name, kind in kinds]))
    return found


def test_json_has_each_curve_and_words_for_what_is_no_number() -> None:
    document = json.loads(whole(answer([(0, "s", {"loss": curve(1.5, math.nan, -math.inf)})], "json")))
    (item,) = curves(document)
    assert (["loss", 0, "s"], [0, 1, 2]) == ([item[key] for key in ("name", "rank", "stream")], item["steps"])
    assert [1.5, "NaN", "-Infinity"] == item["values"]
    assert [BEGIN / 1e9 + second for second in range(3)] == item["times"]
    assert document["next_page_token"] is None


def test_arrays_are_as_they_are_described_bits_of_nan_included() -> None:
    strange = np.array([0x7FC00001, 0x80000000, 0x7F800000], np.uint32).view(np.float32)
    told = [(None, "s", {"loss": curve(1.5, 2.5, 3.5), "scale": Curve(STEPS, TIMES, strange)})]
    found = answer(told, "float32")
    assert FLOAT32 == found.media_type
    (loss, (steps, times, values)), (scale, (*_, bits)) = arrays(whole(found))
    assert ("loss", None, "s", 3) == tuple(loss[key] for key in ("name", "rank", "stream", "points"))
    assert ([0, 1, 2], [1.5, 2.5, 3.5]) == (steps.tolist(), values.tolist())
    assert (TIMES / 1e9).tolist() == times.tolist()
    assert strange.tobytes() == bits.tobytes()
    assert (loss["steps"], loss["times"]) == (scale["steps"], scale["times"])
    assert {0} == {item[name] % 8 for item in (loss, scale) for name in ("steps", "times", "values")}


def whole(answer: ChunkedResponse) -> bytes:
    return b"".join(answer.parts)


@pytest.mark.parametrize("form", ["json", "float32"])
def test_no_curves_are_an_answer(form: str) -> None:
    body = whole(answer([], form))
    assert [] == (json.loads(body)["items"] if form == "json" else arrays(body))


@pytest.fixture
def client(tmp_path: Path) -> Iterator[httpx.Client]:
    with serving(tmp_path) as client:
        yield client


def test_both_forms_say_the_same_of_a_run(client: httpx.Client) -> None:
    stream = Stream(client)
    train(stream, 0, 60)
    stream.send()
    asked = {"names": "loss,val_loss,grad.norm:head.weight"}
    as_json = client.get(f"/api/v1/runs/{stream.run}/series", params=asked).json()
    found = client.get(f"/api/v1/runs/{stream.run}/series", params=asked | {"format": "float32"})
    assert FLOAT32 == found.headers["content-type"]
    for item, (header, (steps, times, values)) in zip(curves(as_json), arrays(found.content), strict=True):
        assert item["name"] == header["name"]
        assert (item["steps"], item["times"]) == (steps.tolist(), times.tolist())
        assert np.array(item["values"], np.float32).tolist() == values.tolist()


def test_an_answer_of_many_pieces_comes_whole(client: httpx.Client) -> None:
    stream = Stream(client)
    for step in range(4000):
        stream.tell(step, dict.fromkeys(("loss", "scale", "grad_norm", "samples", "tokens", "val_loss"), float(step)))
    stream.send()
    asked = {"names": "loss,scale,grad_norm,samples,tokens,val_loss", "points": "4000"}
    answer = client.get(f"/api/v1/runs/{stream.run}/series", params=asked)
    assert CHUNK_BYTES < len(answer.content) == int(answer.headers["content-length"])
    assert [list(range(4000))] * 6 == [item["values"] for item in curves(answer.json())]
    assert 304 == client.get(answer.url, headers={"If-None-Match": answer.headers["ETag"]}).status_code


def test_a_form_that_there_is_not_is_refused_with_those_there_are(client: httpx.Client) -> None:
    stream = Stream(client)
    train(stream, 0, 1)
    stream.send()
    answer = client.get(f"/api/v1/runs/{stream.run}/series", params={"names": "loss", "format": "csv"})
    assert 422 == answer.status_code
    assert "'json' or 'float32'" in answer.json()["detail"]

"""The map of layers on the page: blocks that fold, colours, origins and fallbacks, in a browser."""

from __future__ import annotations

import math
import time

import httpx
import pytest
from selenium import webdriver
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.support.ui import Select

from ammeter.wire import frames
from ammeter.wire.frames import Schema, Tensor
from tests.server.browsing import LOW_CONTRAST, appears, found, press, seen_as, show, text
from tests.server.feeding import STEP, Stream
from tests.server.web.pictures import HEAT, come_to, described, goes, open_run

PARTS = ("attn.qkv.weight", "mlp.fc.weight")


def layered(client: httpx.Client, blocks: int, steps: int = 40, parts: tuple[str, ...] = PARTS) -> Stream:
    """A model of blocks. The gradient of blocks.1.mlp.fc.weight is not finite in step 30, and its origin is known."""
    names = ["embed.weight", *(f"blocks.{block}.{part}" for block in range(blocks) for part in parts), "head.weight"]
    tensors = tuple(Tensor(name, (8, 8), "float32") for name in names)
    schema = Schema(tuple(frames.SCALARS), tuple(frames.STATS), tensors)
    stream = Stream(client, schema=schema, begin=time.time_ns() - (steps + 20) * STEP)
    for step in range(steps):
        norms = dict.fromkeys(names, 1.0) | {"blocks.0.mlp.fc.weight": 3.0 if step == 7 else 1.0}
        stats = {"grad.norm": norms | ({"blocks.1.mlp.fc.weight": math.nan} if step == 30 else {})}
        if step % 10 == 0:
            stats |= {"grad.absmax": {name: 0.25 if name == "embed.weight" else 0.0625 for name in names}}
        stream.tell(step, {"scale": 1024.0 if step < 20 else 65536.0, "grad_norm": 1.0}, stats)
    stream.say("origin.found", 30, kind="backward", module="blocks.1.mlp.fc", direction="backward")
    stream.say(
        "kernel.fallback", 2, op="mm", module="blocks.0.attn.qkv", modules=blocks, dtype="float32", reason="policy"
    )
    stream.say(
        "kernel.fallback", 2, op="mm", module="blocks.0.mlp.fc", modules=1, dtype="bfloat16", reason="misaligned"
    )
    stream.send()
    return stream


def test_a_large_model_is_folded_and_a_block_shows_its_worst_tensor(
    browser: webdriver.Chrome, client: httpx.Client
) -> None:
    stream = layered(client, 24)
    said = open_run(browser, client, stream, HEAT)
    assert "Gradient norm of 50 tensors over steps 0 to 39." in said
    assert "26 rows: 24 blocks can be opened or folded with Enter." in said
    goes(browser, HEAT, Keys.PAGE_UP * 4 + Keys.HOME + Keys.ARROW_DOWN + Keys.ARROW_RIGHT * 7,
         "blocks.0 · step 7 · 3 · worst in blocks.0.mlp.fc.weight")  # fmt: skip
    found(browser, HEAT)[0].send_keys(Keys.ENTER)
    described(browser, HEAT, "28 rows")
    goes(browser, HEAT, Keys.ARROW_DOWN, "blocks.0.attn.qkv.weight · step 7 · 1 · ran in float32 at step 2 (policy)")
    address = browser.current_url
    assert "open=blocks.0" in address
    browser.get("about:blank")
    browser.get(address)
    described(browser, HEAT, "28 rows")
    press(browser, "#heat-fold")
    described(browser, HEAT, "74 rows")
    press(browser, "#heat-fold")
    described(browser, HEAT, "26 rows")


def test_rows_are_in_the_order_of_the_forward_pass_if_it_is_known(
    browser: webdriver.Chrome, client: httpx.Client
) -> None:
    stream = layered(client, 2)
    said = open_run(browser, client, stream, HEAT)
    assert "Tensors are in the order of the parameters." in said
    assert "6 tensors, in the order of the parameters" in text(browser, "#heat summary")
    stream = layered(client, 2)
    stream.say("tensors.ordered", 39, order=[5, 1, 3, 2, 1, 2, 0, 1])
    stream.send()
    said = open_run(browser, client, stream, HEAT)
    assert "Tensors are in the order of the forward pass." in said
    assert "6 tensors, in the order of the forward pass" in text(browser, "#heat summary")
    rows = ["head.weight", "blocks.1", "blocks.1.attn.qkv.weight", "blocks.1.mlp.fc.weight", "blocks.0",
            "blocks.0.attn.qkv.weight", "blocks.0.mlp.fc.weight", "embed.weight"]  # fmt: skip
    for row, name in enumerate(rows):
        goes(browser, HEAT, Keys.PAGE_UP * 4 + Keys.HOME + Keys.ARROW_DOWN * row, f"{name} · step 0")


def test_a_cell_opens_the_tensor_at_the_step_that_was_read(browser: webdriver.Chrome, client: httpx.Client) -> None:
    stream = layered(client, 2, steps=400)
    show(browser, client, f"/runs/{stream.run}?colour=headroom")
    said = described(browser, HEAT, "Headroom of 6 tensors")
    assert "Lowest: 2 in embed.weight at step 20." in said
    goes(browser, HEAT, Keys.PAGE_UP + Keys.HOME, "embed.weight · step 0 · 8, lowest of")
    found(browser, HEAT)[0].send_keys(Keys.ARROW_RIGHT + Keys.ENTER)
    appears(browser, "#heat-cell", "Headroom at step 10: 8")
    appears(browser, "figcaption", "Gradient norm of embed.weight")
    assert "tensor=embed.weight" in browser.current_url
    press(browser, "#heat-step")
    appears(browser, ".charts .filters", "Steps 0 to 70")
    described(browser, HEAT, "over steps 0 to 70")
    Select(found(browser, "#heat-stat")[0]).select_by_value("grad.norm")
    described(browser, HEAT, "Gradient norm of 6 tensors over steps 0 to 70.")
    assert "colour=" not in browser.current_url


def test_origins_and_fallbacks_are_marked(browser: webdriver.Chrome, client: httpx.Client) -> None:
    stream = layered(client, 2)
    open_run(browser, client, stream, HEAT)
    legend = appears(browser, "#heat .legend", "origin of a NaN or Inf")
    assert "ran in float32" in legend
    goes(
        browser, HEAT, Keys.PAGE_UP + Keys.HOME + Keys.ARROW_DOWN * 6 + Keys.ARROW_RIGHT * 30, "blocks.1.mlp.fc.weight"
    )
    said = text(browser, "#heat .readout")
    assert "step 30 · NaN · a NaN or Inf was born here" in said
    browser.execute_script("document.activeElement.blur()")  # the cursor has the same colour
    appears(browser, "#heat .readout", "Drag to select")
    rows = [browser.execute_script(RINGED, HEAT, row / 8, 1 / 8) for row in range(8)]
    assert [False] * 6 + [True, False] == rows


RINGED = """
const [picture, top, height] = arguments;
const canvas = document.querySelector(picture);
const copy = Object.assign(document.createElement("canvas"), { width: canvas.width, height: canvas.height });
const pen = copy.getContext("2d", { willReadFrequently: true });
pen.drawImage(canvas, 0, 0);
const rows = canvas.height - 22 * devicePixelRatio;
const left = Math.round(0.36 * canvas.width);
const { data } = pen.getImageData(left, top * rows, canvas.width - left, height * rows);
const ink = getComputedStyle(document.documentElement).getPropertyValue("--ink").slice(1);
const parts = [0, 2, 4].map((at) => parseInt(ink.slice(at, at + 2), 16));
for (let at = 0; at < data.length; at += 4) if (parts.every((part, index) => data[at + index] === part)) return true;
return false;
"""
"""Whether the ring of an origin is in this part of the picture's height."""


def test_two_thousand_tensors_can_be_used(browser: webdriver.Chrome, client: httpx.Client) -> None:
    stream = layered(client, 250, 12, tuple(f"part{number}.weight" for number in range(8)))
    said = open_run(browser, client, stream, HEAT)
    assert "Gradient norm of 2,002 tensors over steps 0 to 11." in said
    assert "252 rows: 250 blocks" in said
    goes(browser, HEAT, Keys.PAGE_DOWN * 30, "head.weight · step 11 · 1")
    press(browser, "#heat-fold")
    described(browser, HEAT, "2,252 rows")
    goes(browser, HEAT, Keys.PAGE_DOWN * 230, "head.weight · step 11 · 1")


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_it_fits_a_phone(browser: webdriver.Chrome, client: httpx.Client, scheme: str) -> None:
    stream = layered(client, 24)
    with seen_as(browser, scheme, 390, 844):
        show(browser, client, f"/runs/{stream.run}")
        come_to(browser, "#heat")
        described(browser, HEAT)
        assert browser.execute_script("return document.documentElement.scrollWidth") <= 390
        assert [] == browser.execute_script(LOW_CONTRAST)

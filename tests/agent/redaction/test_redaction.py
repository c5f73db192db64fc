"""What is withheld of what a program says, and what is not."""

from __future__ import annotations

import json
import threading
import time
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ammeter.redaction import BEYOND, GONE, MAX_TEXT_CHARS, Redactor
from ammeter.wire.frames import Bye, Event, Hello, Schema, Tensor
from tests.agent.innocent_samples import INNOCENT
from tests.agent.secret_samples import Sample, secrets

SECRETS = secrets()


def redactor() -> Redactor:
    return Redactor(remembers=False)


def said(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, default=repr)


def test_there_are_two_hundred_secrets_and_fifty_innocent_words() -> None:
    assert len(SECRETS) >= 200
    assert len(INNOCENT) >= 50
    assert len(SECRETS) == len({sample.secret for sample in SECRETS})


@pytest.mark.parametrize("sample", SECRETS, ids=lambda sample: sample.name)
def test_no_secret_leaves_by_a_config(sample: Sample) -> None:
    plain = redactor().plain({"said": sample.value, "list": [sample.value]})
    assert sample.secret not in said(plain)
    assert GONE in said(plain)
    assert plain == redactor().plain(plain), "twice is as once"
    msgspec.msgpack.encode(plain)


@pytest.mark.parametrize("sample", SECRETS, ids=lambda sample: sample.name)
def test_no_secret_leaves_by_a_tag_or_a_text(sample: Sample) -> None:
    if isinstance(sample.value, dict) and len(sample.value) == 1:
        assert sample.secret not in said(redactor().tags(sample.value))
    if isinstance(sample.value, str):
        for text in (
            sample.value,
            f"ValueError: {sample.value}",
            f"{sample.value}\nsaid the server",
            f"({sample.value})",
        ):
            assert sample.secret not in redactor().text(text), text
        assert sample.secret not in said(redactor().tags({"said": sample.value}))
    clean = redactor().text(sample.text)
    assert clean == redactor().text(clean), "twice is as once"


PRINTED = [
    sample
    for sample in SECRETS
    if not sample.name.startswith(("object", "slots", "nested tokens", "deep", "kubernetes"))
]


@pytest.mark.parametrize(
    "sample", [sample for sample in PRINTED if not isinstance(sample.value, str)], ids=lambda sample: sample.name
)
def test_no_secret_leaves_where_a_value_was_printed_into_a_text(sample: Sample) -> None:
    assert sample.secret not in redactor().text(f"bad arguments: {sample.text}")


@pytest.mark.parametrize("innocent", INNOCENT, ids=str)
def test_nothing_innocent_is_withheld(innocent: dict[str, Any]) -> None:
    assert innocent == redactor().plain(innocent)
    assert {name: str(value) for name, value in innocent.items()} == redactor().tags(
        {name: str(value) for name, value in innocent.items()}
    )


def test_what_was_withheld_once_is_cut_from_what_is_said_later() -> None:
    mine = Redactor(remembers=True)
    mine.plain({"password": "hunter2hunter2", "proxy": "http://bob:s3cretpw1@proxy:3128"})
    mine.learn({"MY_SERVICE_TOKEN": "zyxw9876abcd", "HOME": "/home/bob", "MAX_TOKENS": "12345678"})
    assert f"{GONE} was refused" == mine.text("hunter2hunter2 was refused")
    assert f"got {GONE} at /home/bob, 12345678" == mine.text("got zyxw9876abcd at /home/bob, 12345678")


def test_a_short_or_common_word_is_not_cut_from_everything() -> None:
    mine = Redactor(remembers=True)
    mine.plain({"password": "model", "token": "blocks", "secret": "12345678"})
    assert "model.blocks.1 12345678" == mine.text("model.blocks.1 12345678")


def test_what_a_config_calls_a_key_does_not_take_the_names_of_tensors() -> None:
    mine = Redactor(remembers=True)
    mine.plain(
        {"head_key": "cls_head", "data": {"key": "token_ids"}, "mask_key": "attention1", "api_key": "lm_head_secret"}
    )
    mine.learn({"FEATURE_KEY_AUTH": "encoder.layer1"})
    assert "cls_head.weight attention1.bias encoder.layer1" == mine.text(
        "cls_head.weight attention1.bias encoder.layer1"
    )
    assert "got " + GONE == mine.text("got lm_head_secret")


@pytest.mark.parametrize(
    "name",
    [
        *("hf_encoder1.layer.0.weight", "encoder.hf_model_2", "fw_lstm_layer1.weight_ih_l0", "r8_block_1.conv"),
        *("jinaai/jina-embeddings-v3", "voyage-code-3", "hf_bert_base_12"),
    ],
)
def test_a_module_or_a_model_that_is_called_like_a_token_keeps_its_name(name: str) -> None:
    assert name == redactor().text(name)
    assert f"the weights of {name} are not finite" == redactor().text(f"the weights of {name} are not finite")


@pytest.mark.parametrize("metric", ["secret_acc", "password_f1", "api_key_recall"])
def test_the_direction_of_a_metric_is_told_whatever_it_is_called(metric: str) -> None:
    tags = {f"better.{metric}": "higher"}
    assert tags == redactor().tags(tags)
    assert {f"better.{metric}": GONE} == redactor().tags({f"better.{metric}": "hunter2"})


def test_a_secret_is_not_cut_in_two() -> None:
    words = redactor().words("x" * (MAX_TEXT_CHARS - 20) + " postgresql://user:very-long-password@host/db")
    assert "very" not in words
    assert len(words) <= MAX_TEXT_CHARS


class Trap:
    """Everything that may be asked of it raises."""

    def __init__(self) -> None:
        object.__setattr__(self, "password", "hunter2")

    def __getattribute__(self, name: str) -> Any:
        raise RuntimeError(name)

    @property
    def secret(self) -> str:
        raise SystemExit

    def __str__(self) -> str:
        raise RuntimeError

    __repr__ = __str__


class Angry(dict[str, Any]):
    def items(self) -> Any:
        raise RuntimeError


def test_objects_that_raise_do_not_reach_the_program() -> None:
    plain = redactor().plain({"trap": Trap(), "angry": Angry(password="x"), "lock": threading.Lock(), "lr": 1})
    assert {"password": GONE} == plain["trap"]
    assert 1 == plain["lr"]


def test_a_property_is_never_called() -> None:
    calls = []

    class Settings:
        def __init__(self) -> None:
            self.lr = 0.1

        @property
        def password(self) -> str:
            calls.append(1)
            return "x"

    assert {"lr": 0.1} == redactor().plain(Settings())
    assert [] == calls


def test_a_config_that_holds_itself_ends() -> None:
    config: dict[str, Any] = {"lr": 1}
    config["me"] = config
    config["list"] = [config]
    assert {"lr": 1, "me": BEYOND, "list": [BEYOND]} == redactor().plain(config)


def test_a_config_is_followed_so_far_and_no_further() -> None:
    deep: Any = "x"
    for _ in range(10_000):
        deep = {"d": deep}
    assert BEYOND in said(redactor().plain(deep))
    began = time.thread_time()
    assert BEYOND in said(redactor().plain({"list": list(range(10**6)), "dict": dict.fromkeys(map(str, range(10**6)))}))
    assert time.thread_time() - began < 5  # of CPU: other programs do not count


def test_two_secret_keys_do_not_become_one() -> None:
    plain = redactor().plain({"ghp_" + "A1" * 18: 1, "ghp_" + "B2" * 18: 2})
    assert {GONE: 1, f"{GONE} 2": 2} == plain


def test_a_tensor_or_a_module_in_a_config_is_a_name() -> None:
    torch = pytest.importorskip("torch")
    plain = redactor().plain({"weights": torch.ones(3), "model": torch.nn.Linear(1, 1), "dtype": torch.float16})
    assert {"weights": "<Tensor>", "model": "<Linear>", "dtype": "torch.float16"} == plain


def test_a_frame_says_no_secret() -> None:
    token = "gh" + "p_" + "A1b2" * 9
    frame = redactor().frame
    hello = Hello(
        run="r",
        stream="s",
        schema=Schema(
            scalars=("loss", token, f"{token}x"), stats=("grad.norm",), tensors=(Tensor(token, (1,), "float32"),)
        ),
        name=f"try {token}",
        project=f"p-{token}",
        host="h",
        config={"lr": 1, "x": token},
        tags={"t": token},
        environment={"command": f"train.py --key {token}"},
    )
    clean = frame(hello)
    assert token not in str(clean)
    assert ("loss", GONE, f"{GONE} 2") == clean.schema.scalars
    assert clean == frame(clean)
    event = Event("a.b", 1, 1, {"path": f"/tmp/{token}", "numbers": [1.0, 2], "deep": [{"x": f"api_key={token}"}]})
    assert token not in str(frame(event))
    assert [1.0, 2] == frame(event).data["numbers"]
    assert token not in str(frame(Bye("exception", 1, 1, f"ValueError: bad {token}")))
    innocent = Event("kernel.fallback", 1, 1, {"module": "blocks.0.attn.key", "op": "aten::mm", "tokens": 5})
    assert frame(innocent) is innocent


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.binary(),
        lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
        max_leaves=20,
    )
)
@settings(max_examples=150, deadline=None)
def test_whatever_a_config_holds_it_becomes_plain_data_and_twice_is_as_once(value: Any) -> None:
    plain = redactor().plain({"value": value})
    again = redactor().plain(plain)
    assert repr(plain) == repr(again)
    json.dumps(plain)
    msgspec.msgpack.encode(plain)

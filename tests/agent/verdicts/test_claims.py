"""No text says more than was seen: every claim of every finding has its evidence beside it."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from ammeter import verdicts
from ammeter.verdicts.causality import explain
from ammeter.verdicts.framework.finding import Finding
from ammeter.wire.columns import ABSENT
from tests.agent import streams
from tests.agent.streams import Stream, findings, views, warm
from tests.agent.streams_values import born, poisoned
from tests.agent.training import watching
from tests.agent.verdicts.claims import CLAIMS, VETTED, unfounded
from tests.agent.verdicts.test_all import EVERY, chaos


def emitted(stream: Stream) -> Iterable[tuple[Finding, int]]:
    """Every finding that somebody would be shown while the stream goes on, with its verdict's first step so far."""
    states: dict[str, bytes] = {}
    earliest: dict[str, int] = {}
    for view in views(stream.frames, cuts=range(len(stream.frames))):
        answer = verdicts.judge(states, view)
        states = answer.states
        for finding in answer.findings:
            earliest[finding.verdict] = min(finding.first_step, earliest.get(finding.verdict, finding.first_step))
            yield finding, earliest[finding.verdict]


def claimed(stream: Stream) -> list[str]:
    return sorted({claim for finding, earliest in emitted(stream) for claim in unfounded(finding, earliest)})


def skips(stream: Stream, count: int, scale: float = 65536.0, **more: object) -> Stream:
    for halvings in range(count):
        stream.bad(scale / 2**halvings, **more)  # type: ignore[arg-type]
    return stream


def goods(stream: Stream, count: int, scale: float, **more: float) -> Stream:
    for _ in range(count):
        stream.good(scale, **more)
    return stream


def an_overflow_that_stops_when_the_scale_backs_off() -> Stream:
    return goods(skips(warm(), 6, last=2, inf=True), 30, 1024.0)


def a_scale_that_falls_to_1_and_works_there() -> Stream:
    return goods(skips(warm(), 16, last=2, inf=True), 30, 1.0)


def a_fresh_scaler_that_works_at_last_below_1() -> Stream:
    return goods(skips(Stream().autocast(), 18, last=2, inf=True), 30, 0.25)


def a_held_scale_that_works_again() -> Stream:
    stream = warm()
    for _ in range(7):
        stream.bad(65536.0, first=3, last=3, inf=True)
    return goods(stream, 30, 65536.0)


def nan_targets_for_six_batches() -> Stream:
    return goods(skips(warm(), 6, last=5, loss=math.nan), 30, 1024.0)


def one_sample_that_overflows_at_a_scale_of_2_to_the_13() -> Stream:
    stream = Stream().autocast()
    for _ in range(60):
        stream.good(8192.0, norm=10 * 2.0**-6, full=True)
    return goods(stream.bad(8192.0, last=3, inf=True), 60, 4096.0)


def nan_alone_that_works_at_the_next_scale() -> Stream:
    stream = goods(Stream().autocast(), 40, 65536.0, norm=0.5, full=True)
    return goods(stream.bad(65536.0, last=3), 60, 32768.0)


def one_optimizer_that_steps_while_the_other_is_skipped() -> Stream:
    stream = warm().bad(65536.0, last=5, loss=math.nan, applied=1).bad(32768.0, last=5, loss=math.nan, applied=1)
    for halvings in range(2, 9):
        stream.bad(2.0 ** (16 - halvings), last=2, applied=1)
    return stream


def an_infinite_loss_with_finite_gradients() -> Stream:
    return goods(warm().good(65536.0, loss=math.inf), 30, 65536.0)


def weights_that_were_not_read() -> Stream:
    stream = warm(scale=None).bad(last=5, loss=math.nan).bad(last=3)
    for _ in range(20):
        stream.bad(last=5, loss=math.nan)
    return stream.good(2.0**-130)


def nan_gradients_whose_loss_was_not_read() -> Stream:
    stream = warm(scale=None)
    for _ in range(3):
        stream.bad(last=3, loss=float(ABSENT))
    return stream


def a_step_of_which_nobody_knows_whether_it_was_made() -> Stream:
    absent = float(ABSENT)
    return warm(scale=None).bad(last=3, applied=absent, skipped=absent)


def a_nan_loss_that_no_step_followed() -> Stream:
    stream = warm().bad(65536.0, last=5, loss=math.nan)
    for halvings in range(1, 15):
        stream.bad(2.0 ** (16 - halvings), last=2, inf=True)
    return stream


def a_frontier_of_gradients_below_a_nan_loss() -> Stream:
    stream = warm().bad(65536.0, last=3, loss=math.nan).bad(32768.0, last=3)
    told = {"kind": "backward", "module": "blocks.1.fc", "tensor": "blocks.1.fc.weight", "confidence": "frontier"}
    return stream.event("origin.found", **told, since=1, nans=9, infs=0)


def a_poisoned_buffer_with_clean_weights() -> Stream:
    stream = warm().bad(65536.0, last=5, loss=math.nan).bad(32768.0, last=5, loss=math.nan)
    told = {"kind": "weights", "module": "norm", "tensor": "norm.running_mean", "buffer": True}
    return born(stream, **told, op="NativeBatchNormBackward0", nans=4, since=1)


def a_target_that_was_not_finite() -> Stream:
    stream = warm().bad(65536.0, last=5, loss=math.nan).bad(32768.0, last=5, loss=math.nan)
    return born(stream, module="", op="loss", absmax=3.2, since=1)


def an_attention_of_the_program_that_overflows_before_its_softmax() -> Stream:
    stream = warm().bad(65536.0, last=5, loss=math.nan).bad(32768.0, last=5, loss=math.nan)
    return born(stream, module="attend", op="SoftmaxBackward0", nans=9, absmax=300.0, since=1, **{"class": "Attend"})


def everything_twice() -> Stream:
    stream = an_overflow_that_stops_when_the_scale_backs_off()
    for _ in range(2):
        goods(stream, 220, 1024.0)
        goods(skips(stream, 6, 1024.0, last=2, inf=True), 30, 16.0)
        goods(stream.bad(16.0, last=5, loss=math.nan), 60, 1024.0)
        goods(stream.bad(1024.0, last=3), 60, 1024.0)
        for _ in range(20):
            goods(stream.bad(4096.0, last=3, inf=True), 4, 2048.0)
        goods(stream.good(2.0**-129), 30, 1024.0)
    return stream


def weights_that_are_nan_before_a_loss_shows_it() -> Stream:
    stream = poisoned(warm(), "embed.weight", last_finite=None)
    return skips(stream, 12, last=5, loss=math.nan)


ADVERSARIAL: dict[str, Callable[[], Stream]] = {
    make.__name__.replace("_", " "): make
    for make in (
        an_overflow_that_stops_when_the_scale_backs_off,
        a_scale_that_falls_to_1_and_works_there,
        a_fresh_scaler_that_works_at_last_below_1,
        a_held_scale_that_works_again,
        nan_targets_for_six_batches,
        one_sample_that_overflows_at_a_scale_of_2_to_the_13,
        nan_alone_that_works_at_the_next_scale,
        one_optimizer_that_steps_while_the_other_is_skipped,
        an_infinite_loss_with_finite_gradients,
        weights_that_were_not_read,
        nan_gradients_whose_loss_was_not_read,
        a_step_of_which_nobody_knows_whether_it_was_made,
        a_nan_loss_that_no_step_followed,
        a_frontier_of_gradients_below_a_nan_loss,
        a_poisoned_buffer_with_clean_weights,
        a_target_that_was_not_finite,
        an_attention_of_the_program_that_overflows_before_its_softmax,
        everything_twice,
        weights_that_are_nan_before_a_loss_shows_it,
    )
}


@pytest.mark.parametrize("name", [*EVERY, *ADVERSARIAL])
def test_every_text_of_a_stream_claims_only_what_was_seen(name: str) -> None:
    assert [] == claimed((EVERY | ADVERSARIAL)[name]())


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(data=st.data())
def test_every_text_claims_only_what_was_seen_in_chaos(data: st.DataObject) -> None:
    assert [] == claimed(data.draw(chaos()))


@pytest.mark.parametrize("name", ADVERSARIAL)
def test_the_hostile_streams_are_judged_the_same_however_they_are_cut(name: str) -> None:
    stream = ADVERSARIAL[name]()
    stream.frames = stream.frames[:400]
    assert streams.judged(stream) == streams.judged(stream, cuts=range(len(stream.frames)))


SEEN = Finding("nonfinite-gradient", "page", 4, 5, 9, "why.", "do.", "what", evidence={})


@pytest.mark.parametrize(
    ("said", "evidence"),
    [
        ("It is no overflow.", {"lowest_failed_scale": 1.0}),
        ("Gradients are non-finite at any scale.", {"lowest_failed_scale": 0.5}),
        ("The weights are poisoned.", {"nonfinite_weight": "head.weight"}),
        ("The weights contain NaN.", {"nonfinite_weight": "head.weight"}),
        ("2 weight tensors contain NaN or Inf.", {"nonfinite_weight": "head.weight"}),
        ("So no weight was changed.", {"steps_applied": 0}),
        ("It originated in the backward pass of head.", {"born_in": "backward", "loss_finite": True}),
        ("It originated in the forward pass of head.", {"born_in": "forward", "last_finite_absmax": 7.0}),
        ("The first NaN or Inf was in x.", {"born_in": "input"}),
    ],
)
def test_a_claim_without_its_evidence_is_found_wherever_it_is_made(said: str, evidence: dict[str, object]) -> None:
    for where in ("title", "cause", "fix"):
        finding = replace(SEEN, **{where: said})
        assert [] != list(unfounded(finding))
        assert [] == list(unfounded(replace(finding, evidence=evidence)))


@pytest.mark.parametrize(
    "said",
    [
        "It never worked.",
        "The run always fails there.",
        "Only that batch is to blame.",
        "It is not the data.",
        "Every later loss is worthless.",
        "The run recovered from it.",
        "The weights are unharmed.",
        "The NaN originated there.",
    ],
)
def test_words_that_nothing_shows_are_found(said: str) -> None:
    assert [] != list(unfounded(replace(SEEN, cause=said)))


def test_a_scale_that_worked_later_takes_the_proof_away() -> None:
    finding = replace(SEEN, cause="Non-finite at any scale.", evidence={"lowest_failed_scale": 1.0})
    assert [] == list(unfounded(finding))
    assert [] != list(unfounded(replace(finding, evidence={**finding.evidence, "applied_again_at_scale": 0.5})))


def test_a_second_episode_says_when_the_first_began() -> None:
    finding = replace(SEEN, cause="So since step 4.", times=2)
    assert [] != list(unfounded(finding, earliest=2))
    told = replace(finding, cause="So since step 4, for the 2nd time (the first began at 2).")
    assert [] == list(unfounded(told, earliest=2))


def test_the_tables_name_verdicts_and_claims_that_there_are() -> None:
    assert set(VETTED) - {"*"} <= set(verdicts.BY_ID)
    assert len({claim.words for claim in CLAIMS}) == len(CLAIMS)


def test_an_overflow_that_stopped_is_not_said_to_be_one_at_any_scale() -> None:
    for stream in (an_overflow_that_stops_when_the_scale_backs_off(), a_scale_that_falls_to_1_and_works_there()):
        finding = findings(stream)["scale-collapse"]
        assert "Steps are applied again since step" in finding.cause
        assert "either the gradients overflow above it, or the bad batches have passed" in finding.cause
        assert "init_scale=1" in finding.fix
        assert "1/scale" not in finding.cause


def test_a_scale_that_was_held_and_works_again_is_not_blamed() -> None:
    finding = findings(a_held_scale_that_works_again())["scale-collapse"]
    assert "so the bad batches have passed" in finding.cause
    assert "Every step from 40 to 46 was skipped" in finding.title


def test_one_sample_that_overflows_is_left_open() -> None:
    finding = findings(one_sample_that_overflows_at_a_scale_of_2_to_the_13())["nonfinite-gradient"]
    assert "not an overflow" not in finding.cause
    assert "run the same batch with GradScaler(init_scale=1) to decide" in finding.cause
    assert 4096 == finding.evidence["next_applied_scale"]


def test_a_nan_loss_is_over_when_steps_are_applied_and_not_when_losses_are_finite() -> None:
    stream = a_nan_loss_that_no_step_followed()
    assert findings(stream)["nonfinite-loss"].active
    assert not findings(goods(stream, 10, 1.0))["nonfinite-loss"].active


def test_a_nan_loss_is_not_said_to_be_born_in_backward() -> None:
    finding = findings(a_frontier_of_gradients_below_a_nan_loss())["nonfinite-loss"]
    assert "backward" not in finding.cause
    assert finding.evidence["born_in"] is None


def test_a_buffer_that_is_nan_is_not_called_a_weight() -> None:
    finding = findings(a_poisoned_buffer_with_clean_weights())["nonfinite-loss"]
    assert "norm.running_mean, a buffer of the model, contains NaN or Inf" in finding.cause
    assert "weights contain" not in finding.cause.lower()
    assert "norm.running_mean" == finding.evidence["nonfinite_buffer"]


def test_an_attention_whose_scores_may_overflow_is_no_masked_row() -> None:
    assert "masked-row-nan" not in findings(an_attention_of_the_program_that_overflows_before_its_softmax())


class Net(torch.nn.Module):
    def __init__(self, norm: bool = False) -> None:
        super().__init__()
        self.body = torch.nn.Linear(8, 16)
        self.norm = torch.nn.BatchNorm1d(16) if norm else torch.nn.Identity()
        self.head = torch.nn.Linear(16, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        scores: torch.Tensor = self.head(torch.relu(self.norm(self.body(x))))
        return scores


Spoil = Callable[[int, Net, torch.Tensor, torch.Tensor], None]


def trained(folder: Path, spoil: Spoil, steps: int = 40, scale: float = 65536.0, norm: bool = False) -> list[Finding]:
    """What is found of a real program with a real scaler on the CPU."""
    torch.manual_seed(3)
    model = Net(norm)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    scaler = torch.amp.GradScaler("cpu", init_scale=scale)
    with watching(folder, model, optimizer, scaler) as seen:
        for step in range(steps):
            x, y = torch.randn(6, 8), torch.randn(6, 2)
            spoil(step, model, x, y)
            with torch.autocast("cpu", torch.float16):
                given = model(x)
            loss = torch.nn.functional.mse_loss(given.float(), y)
            torch.autograd.backward(scaler.scale(loss))
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
    return list(seen.findings().values())


def a_sample_far_away(step: int, model: Net, x: torch.Tensor, y: torch.Tensor) -> None:
    """Its gradients overflow float16 once they are scaled, and would not without a scale."""
    if step == 20:
        y[3] = 3e4


def six_batches_far_away(step: int, model: Net, x: torch.Tensor, y: torch.Tensor) -> None:
    if 20 <= step < 27:
        y[3] = 3e4


def a_target_of_nan(step: int, model: Net, x: torch.Tensor, y: torch.Tensor) -> None:
    if 20 <= step < 23:
        y[2, 1] = math.nan


def an_input_of_nan(step: int, model: Net, x: torch.Tensor, y: torch.Tensor) -> None:
    if step == 20:
        x[2, 1] = math.nan


def a_weight_of_nan(step: int, model: Net, x: torch.Tensor, y: torch.Tensor) -> None:
    if step == 20:
        with torch.no_grad():
            model.head.weight[0, 0] = math.nan


def a_buffer_of_nan(step: int, model: Net, x: torch.Tensor, y: torch.Tensor) -> None:
    """As frozen running statistics: the weights stay clean and every loss is NaN."""
    if step == 20:
        model.norm.eval()
        dict(model.norm.named_buffers())["running_mean"][1] = math.nan


SPOILT = (a_sample_far_away, six_batches_far_away, a_target_of_nan, an_input_of_nan, a_weight_of_nan, a_buffer_of_nan)


@pytest.mark.parametrize("spoil", SPOILT, ids=lambda value: value.__name__)
@pytest.mark.parametrize("scale", [8192.0, 65536.0])
def test_the_texts_of_a_real_program_claim_only_what_was_seen(spoil: Spoil, scale: float, tmp_path: Path) -> None:
    found = trained(tmp_path, spoil, scale=scale, norm=True)
    assert [] == [claim for finding in found for claim in unfounded(finding)]
    texts = " ".join(f"{finding.title} {finding.cause} {finding.fix}" for finding in found)
    if spoil in (a_sample_far_away, six_batches_far_away):
        assert "not an overflow" not in texts
    if spoil is not a_weight_of_nan:
        assert "weights contain NaN" not in texts.replace("Weights", "weights")
    if spoil is not a_sample_far_away:
        assert found


def test_a_real_target_of_nan_is_not_blamed_on_the_model(tmp_path: Path) -> None:
    told = {finding.verdict: finding for finding in trained(tmp_path, a_target_of_nan)}
    assert ["nonfinite-loss"] == [
        finding.finding.verdict for finding in explain([("it", finding) for finding in told.values()])
    ]
    cause = told["nonfinite-loss"].cause
    assert "originated" not in cause
    assert "The model's outputs are finite" in cause


def test_a_real_buffer_of_nan_is_named_as_one(tmp_path: Path) -> None:
    told = {finding.verdict: finding for finding in trained(tmp_path, a_buffer_of_nan, norm=True)}
    assert "norm.running_mean" == told["nonfinite-loss"].evidence["nonfinite_buffer"]
    assert "nonfinite-weights" not in told

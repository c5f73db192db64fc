"""fp32-fallback fires where 5 % of the FLOPs of a forward pass ran in float32, with the line and what to do there."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from ammeter.verdicts.framework.finding import Finding
from tests.agent.stream_builder import Stream
from tests.agent.stream_judgement import findings
from tests.agent.streams_kernels import census, fallback, on_gpu
from tests.agent.training import line_of, watching


def told(reason: str = "autocast-disabled", share: float = 0.25, **more: object) -> Stream:
    return fallback(census(on_gpu(), 1 - share), reason, share, **more)


def found(stream: Stream) -> Finding:
    return findings(stream)["fp32-fallback"]


def test_it_opens_at_the_census_and_names_module_line_and_share() -> None:
    finding = found(told())
    assert ("ticket", 2, 2) == (finding.severity, finding.first_step, finding.opened_step)
    assert ("blocks.1.mlp.fc", "model.py:53") == (finding.module, finding.caller)
    assert "25 % of the matrix FLOPs run in float32" == finding.title
    assert (
        "25 % of the matrix FLOPs of a forward pass run in float32 instead of float16, the largest share in"
        " blocks.1.mlp.fc and 1 similarly named module at model.py:53: autocast is enabled for other parts of the"
        " model, but not for this call."
    ) in finding.cause
    assert "On a GPU with tensor cores, the matrix products then take about 2.8 times as long." in finding.cause
    assert "Move the call at model.py:53 into torch.autocast(device_type=x.device.type, dtype=torch.float16)" in (
        finding.fix
    )


def test_less_than_5_percent_is_nobodys_business() -> None:
    assert {} == findings(told(share=0.049))
    assert {"fp32-fallback"} == set(findings(told(share=0.05)))


def test_what_one_pass_has_in_several_places_is_added_up_but_not_over_passes() -> None:
    assert {} == findings(fallback(told(share=0.03).good(65536), share=0.03, module="tail"))
    finding = found(fallback(told(share=0.03), share=0.04, module="tail", caller="model.py:80"))
    assert (0.07, "tail", "model.py:80") == (finding.evidence["flops_share"], finding.module, finding.caller)
    assert ["tail", "blocks.1.mlp.fc"] == [place["module"] for place in finding.evidence["places"]]


@pytest.mark.parametrize(
    ("reason", "cause", "fix"),
    [
        ("wrong-device", "for another device type", "instead of naming a device type"),
        (
            "custom-function",
            "an autograd.Function of the program",
            'custom_fwd(device_type="cuda", cast_inputs=',
        ),
        ("policy", "autocast runs addmm in the dtype of its inputs", "with .to(torch.float16), or use torch.matmul"),
        ("float64", "is float64, which autocast does not cast", "to float32 with .float() where it enters the program"),
    ],
)
def test_each_reason_has_its_cause_and_its_remedy(reason: str, cause: str, fix: str) -> None:
    finding = found(told(reason))
    assert cause in finding.cause
    assert fix in finding.fix


def test_the_code_of_the_model_itself_has_no_path_but_words() -> None:
    finding = found(told(module="", modules=1, caller=""))
    assert (None, None) == (finding.module, finding.caller)
    assert "the largest share in code outside the model's submodules: autocast" in finding.cause


@pytest.mark.parametrize("reason", ["misaligned", "sdpa-math", "autocast-off"])
def test_what_other_verdicts_are_about_or_somebody_has_cast_by_hand_is_not_counted(reason: str) -> None:
    assert "fp32-fallback" not in findings(told(reason))


def test_it_is_told_once() -> None:
    assert 1 == found(fallback(told().good(65536), share=0.3, module="tail")).times


class Doubtful(torch.nn.Module):
    """A small perceptron that leaves autocast for its second layer."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.last = (torch.nn.Linear(64, 64) for _ in range(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.relu(self.first(x))
        with torch.autocast("cpu", enabled=False):
            x = torch.relu(self.second(x.float()))
        answer: torch.Tensor = self.last(x)
        return answer


@pytest.mark.parametrize("wrong", [True, False])
def test_a_layer_outside_autocast_is_found_in_a_real_run(wrong: bool, tmp_path: Path) -> None:
    model = Doubtful() if wrong else torch.nn.Sequential(*(torch.nn.Linear(64, 64) for _ in range(3)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with watching(tmp_path, model, optimizer) as seen:
        for _ in range(4):
            with torch.autocast("cpu", torch.bfloat16):
                loss = model(torch.randn(8, 64)).float().square().mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
    findings = seen.findings()
    if not wrong:
        assert {} == findings
        return
    finding = findings["fp32-fallback"]
    assert ("second", 1) == (finding.module, finding.first_step)
    assert (finding.caller or "").endswith(line_of(Doubtful.forward, "self.second(x.float())"))
    assert "33 % of the matrix FLOPs of a forward pass run in float32 instead of bfloat16" in finding.cause

"""What a person should do with a run that has an incident follows from what was recorded."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ammeter.verdicts import BY_ID
from ammeter.verdicts.urgency import URGENCY
from ammeter_server.incidents.next_action import MIN_SKIPPED, Situation, WeightsState, first_action, next_action

SITUATION = Situation(
    verdict="nonfinite-weights",
    is_running=True,
    is_page=False,
    is_over=False,
    has_ended=True,
    first_step=20,
    weights="poisoned",
    good_checkpoint=15,
    any_checkpoint=True,
    skipped_in_a_row=0,
    scale=65536.0,
)


def test_every_verdict_has_an_urgency_and_its_sentence_ends_well() -> None:
    assert set(BY_ID) == set(URGENCY)
    for name in BY_ID:
        for weights in ("poisoned", "buffers", "damaged", "doubtful", "safe", "finite", "unknown"):
            text = next_action(replace(SITUATION, verdict=name, weights=weights))
            assert text.endswith(".")
            assert text[0].isupper()


def test_bad_weights_are_left_for_the_checkpoint_from_before_the_fault() -> None:
    text = next_action(SITUATION)
    assert text.startswith("Stop the run: ")
    assert text.endswith("go back to the checkpoint of step 15.")
    without = next_action(replace(SITUATION, good_checkpoint=None))
    assert "no checkpoint from before step 20 was recorded" in without
    assert "start over" in next_action(replace(SITUATION, good_checkpoint=None, first_step=0))


@pytest.mark.parametrize("weights", ["poisoned", "damaged", "doubtful"])
def test_bad_weights_are_never_called_good(weights: WeightsState) -> None:
    for verdict in URGENCY:
        for is_over in (False, True):
            text = next_action(replace(SITUATION, verdict=verdict, weights=weights, is_over=is_over))
            assert "weights are good" not in text
            assert "Nothing to do" not in text


def test_weights_that_were_not_read_are_not_called_good() -> None:
    for weights in ("finite", "unknown"):
        of = replace(SITUATION, verdict="nonfinite-loss", weights=weights)
        assert next_action(of).endswith("Continue from the checkpoint of step 15, from before the fault.")
        assert "ammeter checkpoint" in next_action(replace(of, good_checkpoint=None))
        without = replace(of, good_checkpoint=None, any_checkpoint=False)
        assert next_action(without).endswith("use one of your own from before step 20, or start over.")
        assert next_action(replace(without, first_step=0)).endswith("from the first step on: start over.")


def test_a_scale_that_has_fallen_needs_a_new_scaler() -> None:
    fallen = replace(SITUATION, verdict="scale-collapse", weights="safe", scale=2.0**-113)
    assert next_action(fallen).endswith("with a new GradScaler: the scale has fallen to 2^-113.")
    assert "GradScaler" not in next_action(replace(fallen, scale=None))
    assert "to 0." in next_action(replace(fallen, scale=0.0))
    assert "GradScaler" in next_action(replace(fallen, scale=float("nan")))


def test_a_run_that_skips_every_step_is_stopped_though_the_fault_alone_could_wait() -> None:
    waiting = replace(SITUATION, verdict="activation-overflow", weights="safe", skipped_in_a_row=MIN_SKIPPED - 1)
    assert next_action(waiting).startswith("The run can go on, but mend it soon: ")
    assert next_action(replace(waiting, is_page=True)).startswith("Stop the run: ")
    stuck = next_action(replace(waiting, skipped_in_a_row=MIN_SKIPPED))
    assert stuck.startswith(f"Stop the run: its last {MIN_SKIPPED} steps were all skipped")


def test_a_fault_that_only_costs_time_can_wait() -> None:
    waits = replace(SITUATION, verdict="fp32-fallback", weights="safe", skipped_in_a_row=50)
    assert next_action(waits) == "No reason to stop the run: this costs time, not accuracy."
    assert next_action(replace(waits, is_running=False)) == "No hurry: this costs time, not accuracy."


def test_an_incident_that_has_recovered_leaves_nothing_to_do_unless_the_weights_are_bad() -> None:
    over = replace(SITUATION, verdict="gradient-spike", weights="safe", is_over=True)
    assert next_action(over).startswith("Nothing to do for this run")
    assert "checkpoint of step 15" in next_action(replace(over, weights="damaged"))


def test_a_scale_that_stays_low_after_an_incident_is_not_nothing() -> None:
    over = replace(SITUATION, verdict="broken-in-reduction", weights="safe", is_over=True, scale=2.0**-13)
    text = next_action(over)
    assert text.startswith("It has recovered, but small gradients are lost at its loss scale of 2^-13: stop the run.")
    assert text.endswith("continue from the checkpoint of step 15, with a new GradScaler.")


def test_a_run_that_is_only_silent_may_still_live() -> None:
    silent = replace(SITUATION, verdict="run-lost", weights="safe", is_running=False, has_ended=False)
    assert "find out first whether it still lives" in next_action(silent)
    assert next_action(silent) == first_action("run-lost", {"cause": "host"})
    assert first_action("run-lost", {"cause": "process"}).startswith("Start it again: ")


def test_what_is_only_in_the_memory_of_a_run_is_saved_before_it_is_stopped() -> None:
    for verdict in ("checkpoint-stale", "checkpoint-incomplete"):
        text = next_action(replace(SITUATION, verdict=verdict, weights="safe"))
        assert text.startswith("Let the run go on: ")


def test_a_run_that_has_ended_is_not_stopped() -> None:
    for verdict in URGENCY:
        text = next_action(replace(SITUATION, verdict=verdict, weights="safe", is_running=False))
        assert "Stop the run" not in text
        assert "reason to stop" not in text
        assert "can go on" not in text
    assert next_action(replace(SITUATION, verdict="run-lost", weights="safe", is_running=False)).startswith(
        "Start it again"
    )


def test_a_run_that_resumed_wrongly_goes_back_to_what_it_loaded() -> None:
    text = next_action(replace(SITUATION, verdict="resume-mismatch", weights="safe"))
    assert text.endswith("resume again from the checkpoint that it loaded.")

"""checkpoint-exposed: other users of the machine can read or replace a checkpoint of the run."""

from __future__ import annotations

from typing import Any

from ammeter.verdicts.framework.finding import Finding, Verdict
from ammeter.verdicts.framework.lifecycle import lifecycle_fields
from ammeter.verdicts.framework.single_event import Told, told

EVENT = "checkpoint.saved"

HARM = {
    "read": "copy what it holds of the model, and with that what it has kept of the training data",
    "replace": "put another file in its place, which the next torch.load may run as a program",
}
"""Consequence of a permission, by its name in the event."""


def _abilities(data: dict[str, Any]) -> list[str]:
    exposed = data.get("exposed")
    return [each for each in HARM if each in exposed] if isinstance(exposed, list) else []


def is_note(finding: Finding) -> bool:
    """Whether a finding is about read access only, as on most shared machines.

    Such a finding does not concern the training.
    """
    return finding.verdict == VERDICT.id and "replace" not in finding.evidence.get("exposed", ())


def _conclude(state: Told) -> Finding:
    path, mode = str(state.data.get("path") or "?"), str(state.data.get("mode") or "unknown")
    who = str(state.data.get("by") or "everybody with an account on the machine")
    abilities = _abilities(state.data)
    folder = path.rpartition("/")[0] or "."
    load = " Load what lies there with weights_only=True until you know who wrote it." if "replace" in abilities else ""
    return Finding(
        verdict=VERDICT.id,
        severity="ticket",
        title=f"Others can {' and '.join(abilities)} the checkpoints",
        cause=f"The checkpoint {path}, saved at step {state.opened.first}, has mode {mode} and no folder above it is"
        f" private: {who} can {', and '.join(HARM[each] for each in abilities)}.",
        fix=f"Run chmod 0700 on the folder {folder} and chmod 0600 on {path}, and call os.umask(0o077) before the first"
        f" save so that the next checkpoints are private from the start.{load}",
        evidence={"path": path, "mode": mode, "exposed": abilities, "by": who},
        **lifecycle_fields(state.opened),
    )


VERDICT = Verdict(
    id="checkpoint-exposed",
    severity="ticket",
    title="A checkpoint is open to others",
    question="Can others on the machine read or replace a checkpoint?",
    columns=(),
    events=(EVENT,),
    state=Told,
    rows=False,
    judge=told(EVENT, _conclude, decides=lambda data: bool(_abilities(data))),
)

"""checkpoint-exposed: other users of the machine can read or replace a checkpoint of the run."""

from __future__ import annotations

import shlex
from typing import Any

from ammeter.verdicts.framework.finding import Finding, Verdict
from ammeter.verdicts.framework.lifecycle import lifecycle_fields
from ammeter.verdicts.framework.single_event import SingleEventState, judge_event

EVENT = "checkpoint.saved"

HARMS = {
    "read": "copy the model, including training data that its weights have memorized",
    "replace": "replace the file by one with code that the next torch.load may run",
}
"""Consequence of a permission, by its name in the event."""


def _abilities(data: dict[str, Any]) -> list[str]:
    exposed = data.get("exposed")
    return [ability for ability in HARMS if ability in exposed] if isinstance(exposed, list) else []


def is_note(finding: Finding) -> bool:
    """Whether a finding is about read access only, as on most shared machines.

    Such a finding does not concern the training.
    """
    return finding.verdict == VERDICT.id and "replace" not in finding.evidence.get("exposed", ())


def _conclude(state: SingleEventState) -> Finding:
    path, mode = str(state.data.get("path") or "?"), str(state.data.get("mode") or "unknown")
    who = str(state.data.get("by") or "everybody with an account on the machine")
    abilities = _abilities(state.data)
    folder, name = path.rpartition("/")[0] or ".", path.rpartition("/")[2]
    load = " Load these files with weights_only=True until you know who wrote them." if "replace" in abilities else ""
    return Finding(
        verdict=VERDICT.id,
        severity="ticket",
        title=f"Other users can {' and '.join(abilities)} the checkpoints",
        cause=f"The checkpoint {path}, saved at step {state.opened.first}, has mode {mode}, and no folder above it is"
        f" private: {who} can {', and can '.join(HARMS[ability] for ability in abilities)}.",
        fix=f"Run `cd {shlex.quote(folder)} && chmod 0700 . && chmod 0600 {shlex.quote(name)}`, and call"
        " os.umask(0o077) before the first save,"
        f" which makes later checkpoints private.{load}",
        evidence={"path": path, "mode": mode, "exposed": abilities, "by": who},
        **lifecycle_fields(state.opened),
    )


VERDICT = Verdict(
    id="checkpoint-exposed",
    severity="ticket",
    title="Checkpoint accessible to others",
    question="Can other users of the machine read or replace a checkpoint?",
    columns=(),
    events=(EVENT,),
    state=SingleEventState,
    rows=False,
    judge=judge_event(EVENT, _conclude, decides=lambda data: bool(_abilities(data))),
)

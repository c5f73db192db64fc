"""The facts at the top of the report: run, numbers and comparison with the baseline."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from ammeter.verdicts.framework import wording

MIN_SHARE = 0.001
"""The smallest share that is printed as a number."""

MAX_REDUCTIONS = 3
"""Kinds of reductions that a line has."""

MAX_START_SHARE = 0.01
"""Up to this share of a whole run, the included start cannot mislead a reader."""


def facts(run: dict[str, Any], summary: dict[str, Any], baseline: dict[str, Any] | None) -> Iterator[tuple[str, str]]:
    """Yields the lines as (label, text)."""
    yield from _identity(run, summary)
    yield from _training(run, summary)
    yield "speed", _speed(summary)
    if summary["steps"] and not _lacks_overhead(run, summary):
        yield "overhead", _overhead(summary)
    if weights := _weights(summary):
        yield "weights", weights
    if reductions := summary.get("reductions"):
        yield "reductions", _reductions(reductions)
    if restores := summary["checkpoint_restores"]:
        yield "restores", _restores(restores)
    if summary["nonfinite_steps"]:
        yield "not finite", f"loss or gradients of {wording.count(summary['nonfinite_steps'], 'step')}"
    yield "records lost", _lost(summary["lost"])
    if baseline:
        yield "baseline", _comparison(baseline)


def _identity(run: dict[str, Any], summary: dict[str, Any]) -> Iterator[tuple[str, str]]:
    yield "run", f"{run['id']}, {run['state']}" + (f" ({run['goodbye']})" if run["goodbye"] else "")
    if imported := run.get("imported"):
        yield "imported", f"from {imported['from']} with {imported['with']}: {imported['source']}"
        if imported["columns"]:
            yield "metrics", imported["columns"]
    else:
        yield "where", ", ".join(str(part) for part in _environment(run) if part)
    if run["command"]:
        yield "command", run["command"]
    if run["lives"]:
        yield "attempts", "; ".join(_attempts(run["lives"]))
    when = f"{run['started'] or 'unknown'} to {run['ended'] or 'now'}, {summary['seconds']:.1f} s"
    yield "when", when if run["started"] or "imported" not in run else "not in the history"


def _environment(run: dict[str, Any]) -> Iterator[str]:
    yield f"{run['ranks_reporting']} of {wording.count(run['world_size'], 'rank')}"
    yield run["host"]
    yield run["precision"] or "precision unknown"
    yield f"torch {run['torch_version']}" if run["torch_version"] else ""
    yield run["device_model"] or ""


def _attempts(attempts: list[dict[str, Any]]) -> Iterator[str]:
    """Describes the end of each attempt except the last.

    The rest of the report covers the last.
    """
    yield f"{len(attempts)}, because the ranks were restarted"
    for attempt in attempts[:-1]:
        step = f"at step {attempt['last_step']}" if attempt["last_step"] >= 0 else "before its first step"
        yield f"one ended {step} ({attempt['goodbye'] or attempt['state']})"


def _training(run: dict[str, Any], summary: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """Yields steps, loss scale, losses and gradient norm."""
    steps, skipped, scale = summary["steps"], summary["skipped"], summary["scale"]
    share = f" ({wording.percent(skipped / steps)})" if skipped else ""
    outcomes = [
        f"{count} {text}"
        for count, text in ((summary["applied"], "applied"), (skipped, f"skipped{share}"))
        if count is not None
    ]
    yield "steps", ", ".join([str(steps), *outcomes])
    if scale:
        yield "scale", _scale(scale) + _scale_changes(summary)
    norm = "gradient norm" if summary["grad_norm_of"] == "run" else f"gradient norm of {summary['grad_norm_of']}"
    columns = (("loss", summary["loss"]), *_losses(summary["losses"]), ("validation", summary["val_loss"]))
    for name, column in (*columns, (norm, summary["grad_norm"])):
        if column["read"]:
            yield name, wording.span_text(column, run["last_step"], steps, sampled=name == norm)


def _losses(losses: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yields each loss with its name.

    Losses that may not be the batch's are named after backward().
    """
    for column, summary in losses.items():
        kind = "loss" if column.startswith("loss@") else "backward() on"
        yield f"{kind}{wording.of_loss(column)}".removesuffix(" on"), summary


def _scale_changes(summary: dict[str, Any]) -> str:
    """Returns '; 1 growth, 2 backoffs'; nothing for an imported history, which does not say them."""
    if summary["scale_growths"] is None:
        return ""
    growths = wording.count(summary["scale_growths"], "growth")
    return f"; {growths}, {wording.count(summary['scale_backoffs'], 'backoff')}"


def _scale(scale: dict[str, float]) -> str:
    """Describes the loss scale from the first step to the last."""
    first, last, lowest, highest = (wording.scale(scale[name]) for name in ("first", "last", "lowest", "highest"))
    if lowest == highest:
        return f"{first} throughout"
    return f"{first} at first, {last} at last, between {lowest} and {highest}"


def _speed(summary: dict[str, Any]) -> str:
    parts, seconds = [], summary["step_seconds"]
    if seconds:
        parts.append(f"{1000 * seconds:.3g} ms per step (median)")
        parts += [
            f"{summary[name]['last'] / seconds:,.0f} {name}/s"
            for name in ("samples", "tokens")
            if _number(summary[name]["last"])
        ]
    if summary["seconds_per_epoch"]:
        parts.append(f"{summary['seconds_per_epoch']:,.4g} s per epoch")
    if _number(summary["low_precision_share"]["last"]) is not None:
        parts.append(f"{wording.percent(summary['low_precision_share']['last'])} of the FLOPs in low precision")
    if _number(summary["host_rss_bytes"]["last"]):
        parts.append(f"{summary['host_rss_bytes']['last'] / 2**30:.2f} GiB resident")
    if summary["device_allocated_bytes"]["last"]:
        parts.append(f"{summary['device_allocated_bytes']['highest'] / 2**30:.2f} GiB on the device")
    return ", ".join(parts) or "not measured"


def _number(value: Any) -> float | None:
    """Returns None for text, the form of a non-finite number in the summary."""
    return None if isinstance(value, str) else value


def _overhead(summary: dict[str, Any]) -> str:
    """Describes the overhead as the share of settled steps and the start in seconds.

    The start dominates the share of a short run, so a short run gets no share unless it is small.
    """
    settled, start = summary["overhead_settled_ratio"], f"{summary['overhead_start_seconds']:.2g} s"
    steps = wording.count(summary["overhead_start_steps"], "step")
    if settled is not None:
        return f"{_share(settled)} of the time of settled steps; the start, {steps} with more readings, took {start}"
    total = summary["overhead_ratio"]
    if total is not None and total <= MAX_START_SHARE:
        return f"{start}, {_share(total)} of the run"
    return f"{start} for the start, {steps} with more readings; too few steps for the overhead of a settled step"


def _lacks_overhead(run: dict[str, Any], summary: dict[str, Any]) -> bool:
    """Whether the run was imported from a tool that does not know the overhead."""
    return "imported" in run and not summary["overhead_ratio"]


def _share(share: float) -> str:
    return wording.percent(share) if share >= MIN_SHARE else f"less than {wording.percent(MIN_SHARE)}"


def _weights(summary: dict[str, Any]) -> str:
    parts = []
    if _number(summary["update_ratio"]["last"]) is not None:
        parts.append(f"a step changes them by {summary['update_ratio']['last']:.2g} of their norm")
    if _number(summary["lost_updates"]["last"]) is not None:
        parts.append(f"{wording.percent(summary['lost_updates']['last'])} of the updates are lost to rounding")
    return ", ".join(parts)


def _reductions(calls: list[dict[str, Any]]) -> str:
    """'all_reduce in bfloat16 over 2 ranks, 4.75 kB per step'."""
    return "; ".join(
        f"{call['op']} in {call['dtype']} over {call['ranks']} ranks, {_size(call['bytes'])} per step"
        for call in calls[:MAX_REDUCTIONS]
    )


def _size(size: float) -> str:
    for unit in ("B", "kB", "MB"):
        if size < 1000:
            return f"{size:.3g} {unit}"
        size /= 1000
    return f"{size:.3g} GB"


def _restores(restores: dict[str, int]) -> str:
    """'3 of 4 checkpoints that were read back are complete; 1 failed'."""
    read = sum(count for outcome, count in restores.items() if outcome != "skipped")
    others = [f"{restores[outcome]} {outcome}" for outcome in ("partial", "failed", "skipped") if restores.get(outcome)]
    passed = f"{restores.get('passed', 0)} of {wording.count(read, 'checkpoint')} that were read back are complete"
    return "; ".join([passed, *others])


def _lost(lost: dict[str, dict[str, int]]) -> str:
    reasons = [
        f"{reason}: {wording.count(counts['steps'], 'step')}, {wording.count(counts['events'], 'event')}"
        if any(counts.values())
        else f"{reason}: number unknown"
        for reason, counts in sorted(lost.items())
    ]
    return "; ".join(reasons) or "none"


def _comparison(baseline: dict[str, Any]) -> str:
    """Describes the comparison with the baseline: speed, memory and metrics."""
    parts = []
    if baseline["speedup"]:
        times = f"{1000 * baseline['seconds']:.3g} ms against {1000 * baseline['baseline_seconds']:.3g} ms"
        parts.append(f"{baseline['speedup']:.2f} times its speed ({times} per {baseline['per']})")
    if baseline["memory_ratio"]:
        parts.append(f"{wording.percent(baseline['memory_ratio'])} of its memory")
    parts += [_metric(metric) for metric in baseline["metrics"]]
    reasons: dict[str, list[str]] = {}
    for question, reason in baseline["not_compared"].items():
        reasons.setdefault(reason, []).append(question)
    parts += [f"{wording.listed(questions)} {reason}" for reason, questions in reasons.items()]
    return ", ".join([baseline["name"], *parts]) if parts else f"{baseline['name']}, nothing in common to compare"


def _metric(metric: dict[str, Any]) -> str:
    """'validation 5.0 % worse at step 39'."""
    name = "validation" if metric["name"] == "val_loss" else metric["name"]
    delta = metric["delta"]
    worse = (
        "not finite" if delta == "Infinity" else f"{wording.percent(abs(delta))} {'worse' if delta > 0 else 'better'}"
    )
    return f"{name} {worse} at step {metric['step']}"

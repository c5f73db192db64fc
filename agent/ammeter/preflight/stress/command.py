"""`ammeter stress MODULE:FACTORY`: stresses the sensitive operators of a model against float64."""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Sequence
from typing import Any

from ammeter.preflight import own_process
from ammeter.preflight.dtypes import dtype_list
from ammeter.wire import printable

EXIT_OK, EXIT_FAILS, EXIT_NOT_RUN = 0, 1, 2

DTYPES = "float16,bfloat16,float32"

FACTOR = 8.0
"""A training's activations often grow by several times in its first thousand steps; three bits are a small reserve."""


def main(words: Sequence[str]) -> int:
    """Runs the command.

    Exit code: 0 if every operator has room, 1 if one fails, 2 if the model cannot run.
    """
    given = _arguments(words)
    ended = own_process.run(
        "stress",
        {
            "spelling": given.factory,
            "dtypes": given.dtypes,
            "factor": given.factor,
            "half": given.half,
            "seed": given.seed,
        },
        timeout=given.timeout,
    )
    refused = _refused(given.factory, ended)
    if refused or ended.result is None:
        print(f"ammeter stress: {printable.line(refused)}", file=sys.stderr)
        return EXIT_NOT_RUN
    failing = [row for row in ended.result["rows"] if row.get("fails")]
    document = {"factory": given.factory, "factor": given.factor, "failing": len(failing), **ended.result}
    if given.json:
        print(printable.json(document))
    else:
        from ammeter.preflight.stress import page

        page.show(document, every=given.all)
    return EXIT_FAILS if failing else EXIT_OK


def _refused(factory: str, ended: own_process.Ended) -> str:
    """Why there is no result, empty if there is one."""
    if ended.result is None:
        return f"the process that ran {factory} was {ended.death}; run the factory and its model alone to see why"
    result: dict[str, Any] = ended.result
    if "raised" in result:
        return f"{factory} or its model raised {result['raised']}; run it alone to see the traceback"
    return str(result.get("refused", ""))


def _arguments(words: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="ammeter stress",
        description="Runs the sensitive operators of a model in low precision, from its own operands and from larger,"
        " smaller and degenerate ones, and compares them with float64.",
        epilog="FACTORY returns (module, inputs) or (module, inputs, loss). Exit code: 0 all operators have room, 1 an"
        " operator fails, 2 the model cannot run.",
    )
    parser.add_argument("factory", metavar="MODULE:FACTORY", help="such as train:make_model or src/train.py:make_model")
    parser.add_argument("--dtypes", type=dtype_list, default=DTYPES, help="separated by commas (%(default)s)")
    parser.add_argument(
        "--factor", type=_factor, default=FACTOR, help="room that each operator must have (%(default)g)"
    )
    parser.add_argument("--half", action="store_true", help="the model trains in the dtype itself, without autocast")
    parser.add_argument("--seed", type=int, default=0, help="of torch, before the model is made (%(default)s)")
    parser.add_argument("--timeout", type=float, default=600.0, help="seconds (%(default)g)")
    parser.add_argument("--all", action="store_true", help="print also what holds in float32 or is not used")
    parser.add_argument("--json", action="store_true", help="print JSON")
    return parser.parse_args(words)


def _factor(text: str) -> float:
    try:
        factor = float(text)
    except ValueError:
        factor = math.nan
    if not 1 <= factor < math.inf:
        raise argparse.ArgumentTypeError(f"{text!r} is not a factor; use a number from 1 on, such as 8")
    return factor

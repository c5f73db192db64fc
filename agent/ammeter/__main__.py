"""The command line `ammeter`, whose commands USAGE lists."""

from __future__ import annotations

import sys
from collections.abc import Callable

from ammeter._version import __version__

USAGE = """usage: ammeter COMMAND ...

  run -- COMMAND                 run a command and watch the training in it; the script stays unchanged
  report [PATH] [--baseline RUN] diagnose a run from its journal: findings with cause and fix; needs no server
  runbook VERDICT                show what to do about a finding
  gate RUN [BASELINE] [limits]   check in CI whether a run is within limits of a baseline
  baseline pin RUN               pin a run as the baseline of its project or name
  compare A... --against B...    compare two groups of runs with several seeds each
  canary -- COMMAND              run a command briefly with and without mixed precision, and compare both
  export RUN --to FORMAT TARGET  copy a recorded run into a file or another tool
  import SOURCE --from FORMAT    make a run of a history of TensorBoard, W&B or MLflow, and judge it
  stress MODULE:FACTORY          stress a model's operators in low precision against float64, before training
  probe MODULE:FACTORY           map at which sizes and dtypes a model's precision holds, before training
  checkpoint PATH [--json]       say what a checkpoint contains, and whether it is whole and finite
  ship DIR [--url URL]           send the journals in DIR to a collector
  doctor [--json]                check this machine and the connection to the collector

ammeter COMMAND --help lists the options of a command; ammeter --version prints the version."""


def main(argv: list[str] | None = None) -> int:
    """Runs one command; returns its exit code, 2 for a wrong call."""
    words = sys.argv[1:] if argv is None else argv
    if words[:1] in ([], ["-h"], ["--help"]):
        print(USAGE)
        return 0 if words else 2
    if words[0] == "--version":
        print(f"ammeter {__version__}")
        return 0
    command = _commands().get(words[0])
    if command is None:
        print(f"ammeter: there is no command {words[0]!r}; use one of: {', '.join(_commands())}", file=sys.stderr)
        return 2
    return command(words[1:])


def _commands() -> dict[str, Callable[[list[str]], int]]:
    return {
        "run": _run,
        "report": _report,
        "runbook": _runbook,
        "gate": _gate,
        "baseline": _baseline,
        "compare": _compare,
        "canary": _canary,
        "export": _export,
        "import": _import,
        "stress": _stress,
        "probe": _probe,
        "checkpoint": _checkpoint,
        "ship": _ship,
        "doctor": _doctor,
    }


def _run(words: list[str]) -> int:
    from ammeter import launcher

    return launcher.main(words)


def _report(words: list[str]) -> int:
    from ammeter.report import command

    return command.main(words)


def _runbook(words: list[str]) -> int:
    from ammeter.report import runbook

    return runbook.main(words)


def _gate(words: list[str]) -> int:
    from ammeter.report import gate

    return gate.main(words)


def _baseline(words: list[str]) -> int:
    from ammeter.compare import baseline_command

    return baseline_command.main(words)


def _compare(words: list[str]) -> int:
    from ammeter import compare

    return compare.main(words)


def _canary(words: list[str]) -> int:
    from ammeter import canary

    return canary.main(words)


def _export(words: list[str]) -> int:
    from ammeter.export import command

    return command.main(words)


def _import(words: list[str]) -> int:
    from ammeter.importing import command

    return command.main(words)


def _stress(words: list[str]) -> int:
    from ammeter.preflight.stress import command

    return command.main(words)


def _probe(words: list[str]) -> int:
    from ammeter.preflight.precision_map import command

    return command.main(words)


def _checkpoint(words: list[str]) -> int:
    from ammeter.inspection import command

    return command.main(words)


def _ship(words: list[str]) -> int:
    from ammeter.shipper import process

    return process.main(words)


def _doctor(words: list[str]) -> int:
    from ammeter import doctor

    return doctor.main(words)


if __name__ == "__main__":
    sys.exit(main())

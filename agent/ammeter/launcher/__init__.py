"""`ammeter run -- COMMAND`: watches the training in a command, and ends like it.

This process is the command's parent and otherwise does not interfere: same terminal, same process group, and signals
are forwarded. It remains because only a parent learns which signal killed a process.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path

from ammeter.environment.settings import Settings, disabled, settings, silenced
from ammeter.launcher import result, supervisor
from ammeter.launcher.command import runnable
from ammeter.launcher.exit_watcher import Witness
from ammeter.launcher.notes import Notes
from ammeter.launcher.process_observer import Observer
from ammeter.launcher.reasons import why
from ammeter.launcher.run_identity import run_of
from ammeter.launcher.run_options import config_of, handed_on, tags_of

SITE = Path(__file__).parent / "site"
PRESETS = ("light", "default", "full")
NOT_FOUND, NOT_RUNNABLE = 127, 126
"""Exit codes for a command that cannot be started, as in shells."""


def main(words: Sequence[str]) -> int:
    """Runs the command and ends with its exit code or by its signal.

    2: invalid call or setting. 126, 127: the command cannot be started.
    """
    parser = _parser()
    given = parser.parse_args(words)
    command = runnable(given.command[1:] if given.command[:1] == ["--"] else given.command)
    if not command:
        parser.error("no command is given, such as: ammeter run -- python train.py")
    if disabled(os.environ):
        return _replaced_by(command)
    try:
        chosen = settings(given.url, given.dir, given.budget)
        given.silence = _silenced(given.silence)
    except (ValueError, OSError) as error:
        parser.error(str(error))
    try:
        run, environment = _environment(given, chosen, command)
    except ValueError as error:
        parser.error(str(error))
    return _run(command, environment, chosen, run)


def _run(command: Sequence[str], environment: Mapping[str, str], chosen: Settings, run: str | None) -> int:
    notes = Notes()
    try:
        return _watched(command, environment, chosen, run, notes)
    finally:
        notes.end()


def _watched(
    command: Sequence[str], environment: Mapping[str, str], chosen: Settings, run: str | None, notes: Notes
) -> int:
    witness = Witness(chosen.dir, run)
    observer = Observer(lambda: {each.process for each in notes.read()})
    if notes.path is not None:
        environment = {**environment, "AMMETER_LAUNCH": str(notes.path)}
        notes.hand_on(environment)
    with supervisor.waiting() as waiting:
        try:
            process = waiting.start(command, environment)
        except OSError as error:
            witness.stop(0)
            return _not_started(command, error)
        witness.start(waiting.asked, environment)
        observer.start(process)
        status = waiting.wait(process)
        seen = witness.stop(status)
        closed = observer.stop()
        supervisor.reap(process)
    try:
        if _speaks(environment):
            result.tell(chosen, run, seen, partial(why, command, notes.read(), closed, SITE, supervisor.ended(status)))
    except (Exception, KeyboardInterrupt) as error:  # noqa: BLE001 - the command's end is not changed by our words
        supervisor.say(f"ammeter: no last words ({type(error).__name__}: {error})")
    notes.end()
    return supervisor.end_like(status)


def _silenced(said: Sequence[str]) -> Sequence[str]:
    """Adds the verdicts that the environment silences. Raises ValueError for an unknown name."""
    if not said and not silenced():
        return ()
    from ammeter.verdicts import silence

    return silence.names([*said, silenced()])


def _speaks(environment: Mapping[str, str]) -> bool:
    """Returns whether this launcher prints the result: of many launchers of one run, rank 0's."""
    return all(environment.get(name, "0") == "0" for name in ("RANK", "SLURM_PROCID", "OMPI_COMM_WORLD_RANK"))


def _environment(
    given: argparse.Namespace, chosen: Settings, command: Sequence[str]
) -> tuple[str | None, dict[str, str]]:
    """Returns (run id or None, environment of the command).

    The environment contains all options in variables that every process of the command reads.
    """
    environment = dict(os.environ)
    said = {
        "AMMETER_URL": given.url,
        "AMMETER_DIR": str(chosen.dir),
        "AMMETER_BUDGET": None if given.budget is None else str(given.budget),
        "AMMETER_NAME": given.name,
        "AMMETER_PROJECT": given.project,
        "AMMETER_PRESET": given.preset,
        "AMMETER_PROFILE": "1" if given.profile else None,
        "AMMETER_SILENCE": ",".join(given.silence) or None,
        "AMMETER_TAGS": handed_on(tags_of(given.tag)) if given.tag else None,
        "AMMETER_CONFIG": handed_on(config_of(given.config)) if given.config else None,
    }
    environment |= {name: value for name, value in said.items() if value is not None}
    run, name = run_of(environment, command)
    if run:
        environment["AMMETER_RUN_ID"] = run
    if name:
        environment.setdefault("AMMETER_NAME", name)
    others = [each for each in environment.get("PYTHONPATH", "").split(os.pathsep) if each and each != str(SITE)]
    environment["PYTHONPATH"] = os.pathsep.join([str(SITE), *others])
    return run, environment


def _replaced_by(command: list[str]) -> int:
    try:
        os.execvp(command[0], command)
    except OSError as error:
        return _not_started(command, error)


def _not_started(command: Sequence[str], error: OSError) -> int:
    reason = error.strerror or str(error)
    remedy = "give a program, or a file that ends in .py" if isinstance(error, FileNotFoundError) else "chmod +x it?"
    supervisor.say(f"ammeter run: {command[0]!r} cannot be started: {reason}; {remedy}")
    return NOT_FOUND if isinstance(error, FileNotFoundError) else NOT_RUNNABLE


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="ammeter run",
        usage="ammeter run [options] -- COMMAND ...",
        description="Run a command and watch the training in it, without a change to the script.",
        epilog="Ends as COMMAND ends. AMMETER_DISABLE=1 runs it as if ammeter were not there.",
    )
    parser.add_argument("--name", help="what people find the run by; the script's name otherwise")
    parser.add_argument("--project", help="which project it belongs to")
    parser.add_argument("--url", help="the collector; AMMETER_URL otherwise")
    parser.add_argument("--dir", help="where journals lie; AMMETER_DIR otherwise, else ~/.ammeter")
    parser.add_argument("--tag", action="append", default=[], metavar="KEY=VALUE", help="a tag; may be said repeatedly")
    parser.add_argument(
        "--config", metavar="FILE", help="the settings, as JSON, TOML or YAML; else the script's options"
    )
    parser.add_argument("--preset", choices=PRESETS, help="how much is read")
    parser.add_argument("--budget", type=float, help="share of step time that readings may take, such as 0.01")
    parser.add_argument("--profile", action="store_true", help="name the kernels of five steps, after the twentieth")
    parser.add_argument(
        "--silence", action="append", default=[], metavar="VERDICT", help="report nothing of this verdict, wake nobody"
    )
    parser.add_argument("command", nargs=argparse.REMAINDER, metavar="COMMAND", help="python train.py, torchrun ...")
    return parser

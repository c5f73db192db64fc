"""`ammeter run -- COMMAND`: watches the training in a command, and ends like it.

This process is the command's parent and otherwise does not interfere: same terminal, same process group, and signals
are forwarded. It remains because only a parent learns which signal killed a process.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from ammeter.environment import canary
from ammeter.environment.settings import Settings, disabled, settings, silenced
from ammeter.launcher import result, supervisor
from ammeter.launcher.command import runnable
from ammeter.launcher.exit_watcher import ExitWatcher
from ammeter.launcher.launch_folder import LaunchFolder
from ammeter.launcher.process_scanner import ProcessScanner
from ammeter.launcher.reasons import explain
from ammeter.launcher.run_identity import determine_run
from ammeter.launcher.run_options import encode_config, parse_tags, read_config

SITE = Path(__file__).parent / "site"
PRESETS = ("light", "default", "full")
EXIT_NOT_FOUND, EXIT_NOT_RUNNABLE = 127, 126
"""Exit codes for a command that cannot be started, as in shells."""


def main(words: Sequence[str]) -> int:
    """Runs the command and ends with its exit code or by its signal.

    2: invalid call or setting. 126, 127: the command cannot be started.
    """
    parser = _parser()
    options = parser.parse_args(words)
    command = runnable(options.command[1:] if options.command[:1] == ["--"] else options.command)
    if not command:
        parser.error("the command is missing; use: ammeter run -- python train.py")
    if disabled(os.environ):
        return _exec(command)
    try:
        chosen = settings(options.url, options.dir, options.budget)
        options.silence = _silenced_verdicts(options.silence)
    except (ValueError, OSError) as error:
        parser.error(str(error))
    try:
        run, environment = _environment(options, chosen, command)
    except ValueError as error:
        parser.error(str(error))
    return _run(command, environment, chosen, run)


def _run(command: Sequence[str], environment: Mapping[str, str], chosen: Settings, run: str | None) -> int:
    launch_folder = LaunchFolder()
    try:
        return _watch(command, environment, chosen, run, launch_folder)
    finally:
        launch_folder.remove()


def _watch(
    command: Sequence[str],
    environment: Mapping[str, str],
    chosen: Settings,
    run: str | None,
    launch_folder: LaunchFolder,
) -> int:
    watcher = ExitWatcher(chosen.dir, run)
    scanner = ProcessScanner(lambda: {note.process for note in launch_folder.notes()})
    prints_result, importing = _prints_result(environment), result.import_later()
    if launch_folder.path is not None:
        environment = {**environment, "AMMETER_LAUNCH": str(launch_folder.path)}
        launch_folder.write_settings(environment)
    with supervisor.supervision() as parent:
        try:
            process = parent.start(command, environment)
        except OSError as error:
            watcher.stop(0)
            return _report_not_started(command, error)
        watcher.start(parent.signals, environment)
        scanner.start(process)
        if prints_result:
            importing.start()
        status = parent.wait(process)
        importing.cancel()
        watched = watcher.stop(status)
        unwatched = scanner.stop()
        supervisor.reap(process)

    def reasons() -> list[str]:
        return explain(command, launch_folder.notes(), unwatched, SITE, supervisor.describe_end(status))

    try:
        if prints_result:
            result.print_result(chosen, run, watched, reasons)
    except (Exception, KeyboardInterrupt) as error:  # noqa: BLE001 - the command's end is not changed by our output
        supervisor.print_line(f"ammeter: the result cannot be shown ({type(error).__name__}: {error})")
    launch_folder.remove()
    return supervisor.end_like(status)


def _silenced_verdicts(options: Sequence[str]) -> Sequence[str]:
    """Adds the verdicts that the environment silences. Raises ValueError for an unknown name."""
    if not options and not silenced():
        return ()
    from ammeter.verdicts import silence

    return silence.names([*options, silenced()])


def _prints_result(environment: Mapping[str, str]) -> bool:
    """Returns whether this launcher prints the result: of many launchers of one run, rank 0's."""
    return all(environment.get(name, "0") == "0" for name in ("RANK", "SLURM_PROCID", "OMPI_COMM_WORLD_RANK"))


def _environment(
    options: argparse.Namespace, chosen: Settings, command: Sequence[str]
) -> tuple[str | None, dict[str, str]]:
    """Returns (run id or None, environment of the command).

    The environment contains all options in variables that every process of the command reads.
    """
    environment = {**canary.inherited(os.environ, os.getppid()), **_option_variables(options, chosen)}
    run, name = determine_run(environment, command)
    if run:
        environment["AMMETER_RUN_ID"] = run
    if name:
        environment.setdefault("AMMETER_NAME", name)
    others = [path for path in environment.get("PYTHONPATH", "").split(os.pathsep) if path and path != str(SITE)]
    environment["PYTHONPATH"] = os.pathsep.join([str(SITE), *others])
    return run, environment


def _option_variables(options: argparse.Namespace, chosen: Settings) -> dict[str, str]:
    """Returns the variables of the given options."""
    variables = {
        "AMMETER_URL": options.url,
        "AMMETER_DIR": str(chosen.dir),
        "AMMETER_BUDGET": None if options.budget is None else str(options.budget),
        "AMMETER_NAME": options.name,
        "AMMETER_PROJECT": options.project,
        "AMMETER_PRESET": options.preset,
        "AMMETER_PROFILE": "1" if options.profile else None,
        "AMMETER_SILENCE": ",".join(options.silence) or None,
        "AMMETER_TAGS": encode_config(parse_tags(options.tag)) if options.tag else None,
        "AMMETER_CONFIG": encode_config(read_config(options.config)) if options.config else None,
    }
    return {name: value for name, value in variables.items() if value is not None}


def _exec(command: list[str]) -> int:
    """Replaces this process by the command; returns only if that fails."""
    try:
        os.execvp(command[0], command)
    except OSError as error:
        return _report_not_started(command, error)


def _report_not_started(command: Sequence[str], error: OSError) -> int:
    reason = error.strerror or str(error)
    not_found = isinstance(error, FileNotFoundError)
    remedy = "check its path" if not_found else f"try: chmod +x {command[0]}"
    supervisor.print_line(f"ammeter run: {command[0]!r} cannot be started: {reason}; {remedy}")
    return EXIT_NOT_FOUND if not_found else EXIT_NOT_RUNNABLE


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="ammeter run",
        usage="ammeter run [options] -- COMMAND ...",
        description="Run a command and watch the training in it. The script needs no change.",
        epilog="The exit code is that of COMMAND. With AMMETER_DISABLE=1 the command runs without Ammeter.",
    )
    parser.add_argument("--name", help="name of the run (default: the name of the script)")
    parser.add_argument("--project", help="project of the run")
    parser.add_argument("--url", help="address of the collector (default: AMMETER_URL)")
    parser.add_argument("--dir", help="folder of the journals (default: AMMETER_DIR, else ~/.ammeter)")
    parser.add_argument("--tag", action="append", default=[], metavar="KEY=VALUE", help="a tag; can be repeated")
    parser.add_argument(
        "--config",
        metavar="FILE",
        help="config of the run, a file in JSON, TOML or YAML (default: the options of the script)",
    )
    parser.add_argument("--preset", choices=PRESETS, help="how much is read (default: default)")
    parser.add_argument("--budget", type=float, help="share of step time that readings may use, such as 0.01")
    parser.add_argument("--profile", action="store_true", help="record the kernels of five steps, after 20 steps")
    parser.add_argument(
        "--silence", action="append", default=[], metavar="VERDICT", help="list this verdict only as silenced"
    )
    parser.add_argument(
        "command", nargs=argparse.REMAINDER, metavar="COMMAND", help="such as: python train.py, torchrun ..."
    )
    return parser

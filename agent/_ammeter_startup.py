"""Runs in each Python process below `ammeter run`: waits for torch and notifies the launcher.

Imported by ammeter_startup.pth where ammeter is installed, or by launcher/site/sitecustomize.py through PYTHONPATH,
whichever comes first. The module itself imports only os and sys: a program without torch pays one comparison of names
per import. Any Python 3 must be able to parse this file.
"""

import os
import sys

READY = "torch._dynamo"
"""The package that torch imports for its first optimizer, in any process that trains."""

LAUNCHES = "/dev/shm/ammeter-launches-%d"  # noqa: S108 - its owner is checked
"""Folder in which launchers store the settings that a command with a cleared environment cannot inherit; %d is the user
id."""

MAX_NOTES_BYTES = 65536
"""Size limit of the notes file; a launcher of thousands of Python processes does not need a note of each."""

MAX_ANCESTORS = 64


class _ImportObserver:
    """An import finder that observes imports of torch and READY and provides no module itself."""

    torch_imported = False

    def __init__(self, launch):
        self._launch = launch
        self._asked = ""

    def find_spec(self, name, path=None, target=None):
        """Asks the other finders; one of them may ask all finders itself, as that of `import ammeter` does."""
        if name == "torch" and not self.torch_imported:
            self.torch_imported = True
            note(self._launch, "torch", sys.executable)
            _note_at_exit(self._launch)
        if name not in ("torch", READY) or name == self._asked:
            return None
        asked_before, self._asked = self._asked, name
        try:
            for finder in list(sys.meta_path):
                find = None if finder is self else getattr(finder, "find_spec", None)
                spec = find(name, path, target) if find else None
                if spec is not None:
                    if hasattr(spec.loader, "exec_module"):
                        after = _observe if name == "torch" else self._arm
                        spec.loader = _NotifyingLoader(spec.loader, after)
                    return spec
            return None
        finally:
            self._asked = asked_before

    def _arm(self):
        sys.meta_path[:] = [finder for finder in sys.meta_path if finder is not self]
        _arm(self._launch)


class _NotifyingLoader:
    """Wraps the package's own loader and makes a call after the import."""

    def __init__(self, loader, after):
        self._loader = loader
        self._after = after

    def __getattr__(self, name):
        return getattr(self._loader, name)

    def create_module(self, spec):
        return self._loader.create_module(spec)

    def exec_module(self, module):
        module.__spec__.loader = module.__loader__ = self._loader
        self._loader.exec_module(module)
        self._after()


def note(launch, event, text=""):
    """Appends a line for the launcher: process id, event and text. Never raises."""
    line = "\t".join([str(os.getpid()), event, " ".join(str(text).split())[:1000]]) + "\n"
    try:
        file = os.open(os.path.join(launch, "notes"), os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW)
    except OSError:  # the launcher has ended, or is another user's
        return
    try:
        if os.fstat(file).st_size < MAX_NOTES_BYTES:
            os.write(file, line.encode("utf-8", "replace"))
    except OSError:  # a full tmpfs
        pass
    finally:
        os.close(file)


def _observe():
    """Starts the notes of the calls that prepare a training, see ammeter/preparation."""
    try:
        from ammeter.preparation import import_hook

        import_hook.begin()
    except Exception:  # noqa: BLE001, S110 - _arm reports the reason, in a process that trains
        pass


def _arm(launch):
    """Starts watching in this process, or reports why it cannot.

    The reason goes to the launcher, which prints it at the end, and at once to the terminal.
    """
    try:
        reason = _unsupported_version()
        if not reason:
            from ammeter.launcher import inside

            _restore_settings(launch)
            inside.arm(lambda event, text="": note(launch, event, text))
            note(launch, "armed", sys.modules["torch"].__version__)
            return
    except ImportError as error:
        reason = _describe_import_error(error)
    except Exception as error:  # noqa: BLE001 - the promise: the program runs, watched or not
        reason = f"{sys.executable}: {error} ({type(error).__name__})"
    note(launch, "refused", reason)
    if os.environ.get("LOCAL_RANK", "0") == "0":
        try:  # noqa: SIM105 - nothing is imported
            sys.stderr.write(f"ammeter: this program is not watched: {reason}. It runs as without Ammeter.\n")
        except Exception:  # noqa: BLE001, S110 - stderr is missing, closed or replaced by the program
            pass


def _unsupported_version():
    if sys.version_info < (3, 11):  # noqa: UP036 - any Python may read this
        return "{} is Python {}.{}; use Python 3.11 or newer".format(sys.executable, *sys.version_info[:2])
    version = str(getattr(sys.modules["torch"], "__version__", "0"))
    if _version_numbers(version) < (2, 4):
        return f"torch {version} in {sys.executable} is too old; use torch 2.4 or newer"
    return ""


def _version_numbers(version):
    numbers = []
    for part in version.split(".")[:2]:
        digits = "".join(char for char in part if char.isdigit())
        numbers.append(int(digits or 0))
    return tuple(numbers)


def _describe_import_error(error):
    # a folder named ammeter, such as one of journals, is importable as a package without a file
    package = getattr(error, "name", None) or ""
    file = getattr(sys.modules.get("ammeter"), "__file__", None)
    if package == "ammeter" or (package.startswith("ammeter.") and file is None):
        return f"ammeter is not installed in {sys.executable}; run: {sys.executable} -m pip install ammeter"
    return f"ammeter cannot be imported in {sys.executable} ({error})"


def _note_at_exit(launch):
    """Notes at exit that torch was imported, or that its import did not complete.

    Only the end of the process shows that no optimizer followed.
    """
    import atexit

    process = os.getpid()

    def ended():
        if os.getpid() == process:
            torch = sys.modules.get("torch")
            version = getattr(torch, "__version__", "")
            note(launch, "ended" if version else "missing", version or sys.executable)

    atexit.register(ended)


def _launch():
    """Returns the folder of the launcher above this process, '' if there is none.

    If the command has cleared its environment, the folder is found through the ancestors of this process.
    """
    launch = os.environ.get("AMMETER_LAUNCH")
    if launch:
        return launch
    folder = LAUNCHES % os.geteuid()
    try:
        status = os.stat(folder)
        if status.st_uid != os.geteuid() or status.st_mode & 0o077:
            return ""
        launches = set(os.listdir(folder))
        process = os.getppid()
        for _ in range(MAX_ANCESTORS):
            fields = _stat_fields(process)
            name = f"{process}.{fields[19]}"
            if name in launches:
                return os.path.join(folder, name)
            process = int(fields[1])
            if process <= 1:
                return ""
    except (OSError, IndexError, ValueError):
        pass  # /proc is hidden, or an ancestor has just ended
    return ""


def _stat_fields(process):
    """Returns the fields of /proc/PID/stat after the name; the start time is the 20th."""
    with open(f"/proc/{process}/stat", errors="replace") as file:
        return file.read().rpartition(")")[2].split()


def _restore_settings(launch):
    """Restores the settings of `ammeter run` if the command has cleared the environment."""
    if "AMMETER_LAUNCH" in os.environ:
        return
    with open(os.path.join(launch, "environment"), encoding="utf-8") as file:
        for variable in file.read().split("\0"):
            name, equals, value = variable.partition("=")
            if equals and name.startswith("AMMETER_"):
                os.environ.setdefault(name, value)


def _begin():
    launch = _launch()
    words = list(getattr(sys, "orig_argv", None) or [sys.executable])
    if launch and words[1:3] != ["-m", "ammeter"]:
        note(launch, "began", " ".join(words))
        sys.meta_path.insert(0, _ImportObserver(launch))


_begin()

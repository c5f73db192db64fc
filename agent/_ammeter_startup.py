"""Runs in each Python process below `ammeter run`: waits for torch and notifies the launcher.

Imported by ammeter_startup.pth where ammeter is installed, or by launcher/site/sitecustomize.py through PYTHONPATH,
whichever comes first. The module itself imports only os and sys: a program without torch pays one comparison of names
per import. Any Python 3 must be able to parse this file.
"""

import os
import sys

READY = "torch._dynamo"
"""The package that torch imports for its first optimizer, in any process that trains."""

LAUNCHES = "/dev/shm/ammeter-launches-%d"  # noqa: S108 - who owns it is looked at
"""Folder in which launchers store the settings that a command with a cleared environment cannot inherit; %d is the user
id."""

MOST_BYTES = 65536
"""Size limit of the notes file; a launcher of thousands of Python processes does not need a note of each."""

MOST_ANCESTORS = 64


class _Waits:
    """An import finder that observes imports of torch and READY and provides no module itself."""

    asked = False

    def __init__(self, launch):
        self._launch = launch

    def find_spec(self, name, path=None, target=None):
        if name == "torch" and not self.asked:
            self.asked = True
            note(self._launch, "torch", sys.executable)
            _at_exit(self._launch)
        if name != READY:
            return None
        for finder in list(sys.meta_path):
            found = None if finder is self or not hasattr(finder, "find_spec") else finder.find_spec(name, path, target)
            if found is not None:
                if hasattr(found.loader, "exec_module"):
                    found.loader = _Loads(found.loader, self, self._launch)
                return found
        return None


class _Loads:
    """Wraps the package's own loader and starts Ammeter after the import."""

    def __init__(self, loader, finder, launch):
        self._loader = loader
        self._finder = finder
        self._launch = launch

    def __getattr__(self, name):
        return getattr(self._loader, name)

    def create_module(self, spec):
        return self._loader.create_module(spec)

    def exec_module(self, module):
        sys.meta_path[:] = [each for each in sys.meta_path if each is not self._finder]
        module.__spec__.loader = module.__loader__ = self._loader
        self._loader.exec_module(module)
        _arm(self._launch)


def note(launch, event, text=""):
    """Appends a line for the launcher: process id, event and text. Never raises."""
    said = "\t".join([str(os.getpid()), event, " ".join(str(text).split())[:1000]]) + "\n"
    try:
        file = os.open(os.path.join(launch, "notes"), os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW)
    except OSError:  # the launcher has ended, or is another user's
        return
    try:
        if os.fstat(file).st_size < MOST_BYTES:
            os.write(file, said.encode("utf-8", "replace"))
    except OSError:  # a full tmpfs
        pass
    finally:
        os.close(file)


def _arm(launch):
    """Starts watching in this process, or reports why it cannot.

    The reason goes to the launcher, which prints it at the end, and at once to the terminal.
    """
    try:
        refused = _refused_by_versions()
        if not refused:
            from ammeter.launcher import inside

            _take_what_was_cleared(launch)
            inside.arm(lambda event, text="": note(launch, event, text))
            note(launch, "armed", sys.modules["torch"].__version__)
            return
    except ImportError as error:
        refused = _refused_by_import(error)
    except Exception as error:  # noqa: BLE001 - the promise: the program runs, watched or not
        refused = f"{sys.executable}: {error} ({type(error).__name__})"
    note(launch, "refused", refused)
    if os.environ.get("LOCAL_RANK", "0") == "0":
        try:  # noqa: SIM105 - nothing is imported
            sys.stderr.write(f"ammeter: not watched: {refused}. The program runs on without it.\n")
        except Exception:  # noqa: BLE001, S110 - there is none, or nobody reads it, or it is the program's own
            pass


def _refused_by_versions():
    if sys.version_info < (3, 11):  # noqa: UP036 - any Python may read this
        return "{} is Python {}.{}, and ammeter needs 3.11".format(sys.executable, *sys.version_info[:2])
    version = str(getattr(sys.modules["torch"], "__version__", "0"))
    if _numbers(version) < (2, 4):
        return f"torch {version} in {sys.executable} is older than 2.4, the oldest that ammeter can watch"
    return ""


def _numbers(version):
    found = []
    for part in version.split(".")[:2]:
        digits = "".join(each for each in part if each.isdigit())
        found.append(int(digits or 0))
    return tuple(found)


def _refused_by_import(error):
    # a folder named ammeter, such as one of journals, is importable as a package without a file
    package = getattr(error, "name", None) or ""
    found = getattr(sys.modules.get("ammeter"), "__file__", None)
    if package == "ammeter" or (package.startswith("ammeter.") and found is None):
        return f"ammeter is not installed in {sys.executable}; run: {sys.executable} -m pip install ammeter"
    return f"ammeter cannot be imported in {sys.executable} ({error})"


def _at_exit(launch):
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
    said = os.environ.get("AMMETER_LAUNCH")
    if said:
        return said
    folder = LAUNCHES % os.geteuid()
    try:
        owned = os.stat(folder)
        if owned.st_uid != os.geteuid() or owned.st_mode & 0o077:
            return ""
        launches = set(os.listdir(folder))
        process = os.getppid()
        for _ in range(MOST_ANCESTORS):
            fields = _status(process)
            name = f"{process}.{fields[19]}"
            if name in launches:
                return os.path.join(folder, name)
            process = int(fields[1])
            if process <= 1:
                return ""
    except (OSError, IndexError, ValueError):
        pass  # /proc is hidden, or an ancestor has just ended
    return ""


def _status(process):
    """Returns the fields of /proc/PID/stat after the name; the start time is the 20th."""
    with open(f"/proc/{process}/stat", errors="replace") as file:
        return file.read().rpartition(")")[2].split()


def _take_what_was_cleared(launch):
    """Restores the settings of `ammeter run` if the command has cleared the environment."""
    if "AMMETER_LAUNCH" in os.environ:
        return
    with open(os.path.join(launch, "environment"), encoding="utf-8") as file:
        for each in file.read().split("\0"):
            name, equals, value = each.partition("=")
            if equals and name.startswith("AMMETER_"):
                os.environ.setdefault(name, value)


def _begin():
    launch = _launch()
    words = list(getattr(sys, "orig_argv", None) or [sys.executable])
    if launch and words[1:3] != ["-m", "ammeter"]:
        note(launch, "began", " ".join(words))
        sys.meta_path.insert(0, _Waits(launch))


_begin()

"""What `ammeter run` does at the start of each Python below it: waits for torch, and leaves notes for the launcher.

Imported by ammeter_startup.pth, where ammeter is installed, or by launcher/site/sitecustomize.py, by way of PYTHONPATH;
whichever comes first. It imports nothing: a program without torch pays for a comparison of names per import. Any
Python 3 must be able to read this.
"""

import os
import sys

READY = "torch._dynamo"
"""The package that torch imports for its first optimizer, in whatever process trains."""

LAUNCHES = "/dev/shm/ammeter-launches-%d"  # noqa: S108 - who owns it is looked at
"""Where launchers leave what a command that has cleared its environment cannot hand on; %d is the user's id."""

MOST_BYTES = 65536
"""Of notes. Who starts thousands of Pythons does not need to hear of each."""

MOST_ANCESTORS = 64


class _Waits:
    """A finder that finds nothing, but hears when torch and the package are asked for."""

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
    """The package's own loader, and Ammeter behind it."""

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
    """A line for the launcher: this process, what happened, and words about it. Never raises."""
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
    """Words of what keeps us out go to the launcher, which says them at the end, and at once to the terminal."""
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
    if getattr(error, "name", None) == "ammeter":
        return f"ammeter is not installed in {sys.executable}; run: {sys.executable} -m pip install ammeter"
    return f"ammeter cannot be imported in {sys.executable} ({error})"


def _at_exit(launch):
    """torch was imported; whether an optimizer came after it, only the end tells."""
    import atexit

    process = os.getpid()

    def ended():
        if os.getpid() == process:
            torch = sys.modules.get("torch")
            version = getattr(torch, "__version__", "")
            note(launch, "ended" if version else "missing", version or sys.executable)

    atexit.register(ended)


def _launch():
    """The folder of the launcher below which this process runs, '' where there is none.

    Where the command has cleared its environment it is looked for among the ancestors of this process.
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
        pass  # a /proc that is hidden from us, or an ancestor that has just ended
    return ""


def _status(process):
    """Fields of proc(5) behind the name: state, parent, ...; the time it was started is the 20th."""
    with open(f"/proc/{process}/stat", errors="replace") as file:
        return file.read().rpartition(")")[2].split()


def _take_what_was_cleared(launch):
    """What `ammeter run` was told, as this process would have it if nobody had cleared the environment."""
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

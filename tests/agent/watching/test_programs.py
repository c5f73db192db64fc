"""Training is the same to the last bit, whatever the program does."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.agent.watching.fail_open import check_program

pytestmark = pytest.mark.long

PROGRAMS: dict[str, tuple[int, str]] = {
    "is pickled, saved and copied in the middle": (
        12,
        """
        import copy, io, pickle
        run = watch(model, optimizer, scaler)
        step()
        whole = pickle.loads(pickle.dumps((model, optimizer, scaler)))
        file = io.BytesIO()
        torch.save({"model": model, "optimizer": optimizer, "scaler": scaler}, file)
        file.seek(0)
        saved = torch.load(file, weights_only=False)
        twin = copy.deepcopy((model, optimizer, scaler))
        step(of=twin)
        step(of=whole)
        step(of=tuple(saved.values()))
        print(bits(*twin), bits(*whole), bits(*saved.values()))
        for _ in range(11):
            step()
        print(bits())
        """,
    ),
    "is interrupted in forward, in backward and in step, and goes on": (
        10,  # the step that was interrupted in its optimizer is one, too
        """
        def interrupt(*_):
            signal.raise_signal(signal.SIGINT)

        def attempt(x):
            try:
                step(x=x)
            except KeyboardInterrupt:
                print("interrupted")

        run = watch(model, optimizer, scaler)
        step()
        for hook in (
            lambda: model[1].register_forward_hook(interrupt),
            lambda: model[0].weight.register_hook(interrupt),
            lambda: optimizer.register_step_pre_hook(interrupt),
        ):
            handle = hook()
            attempt(torch.ones(6, 8))
            handle.remove()
            scaler.update(2.0**8)
            scaler._per_optimizer_states.clear()
            for _ in range(2):
                step()
        for _ in range(2):
            step()
        print(bits())
        """,
    ),
    "raises out of its loop and begins a new one": (
        8,
        """
        run = watch(model, optimizer, scaler)
        for fails in (0, 1):
            try:
                for each in range(4):
                    step()
                    1 / (each - 3 + fails)
            except ZeroDivisionError:
                print("failed")
        for _ in range(1):
            step()
        print(bits())
        """,
    ),
    "trains in a generator that is closed in the middle": (
        5,
        """
        def training():
            try:
                while True:
                    step()
                    yield losses[-1]
            finally:
                print("closed", flush=True)

        run = watch(model, optimizer, scaler)
        loop = training()
        for _ in range(5):
            next(loop)
        loop.close()
        print(bits())
        """,
    ),
    "has another default device and dtype": (
        6,
        """
        run = watch(model, optimizer, scaler)
        batch = torch.linspace(-1, 1, 48).reshape(6, 8)
        torch.set_default_device("meta")
        torch.set_default_dtype(torch.float64)
        for _ in range(6):
            step(x=batch)
        torch.set_default_device("cpu")
        print(bits())
        """,
    ),
    "asks for deterministic algorithms": (
        6,
        """
        torch.use_deterministic_algorithms(True)
        run = watch(model, optimizer, scaler)
        for _ in range(6):
            step()
        print(bits(), torch.are_deterministic_algorithms_enabled())
        """,
    ),
    "takes warnings for errors": (
        6,
        """
        import warnings
        warnings.simplefilter("error")
        run = watch(model, optimizer, scaler)
        for at in range(6):
            step(float("nan") if at == 3 else 1.0)
        run.log(loss=1.0)
        print(bits())
        run.close()
        """,
    ),
    "does without the garbage collector": (
        30,
        """
        import gc
        gc.disable()
        run = watch(model, optimizer, scaler)
        for _ in range(30):
            step()
        print(bits(), gc.isenabled())
        """,
    ),
    "is traced": (
        6,
        """
        seen = []

        def trace(frame, event, argument):
            if frame.f_code.co_filename == __file__:
                seen.append((frame.f_code.co_name, event, frame.f_lineno))
                return trace

        run = watch(model, optimizer, scaler)
        sys.settrace(trace)
        for _ in range(6):
            step()
        print(sys.gettrace() is trace)
        sys.settrace(None)
        print(bits(), len(seen), hash(repr(seen)) if os.environ.get("PYTHONHASHSEED") else "")
        """,
    ),
    "has little room on the stack": (
        6,
        """
        run = watch(model, optimizer, scaler)
        step()
        sys.setrecursionlimit(150)
        for _ in range(5):
            step()
        sys.setrecursionlimit(1000)
        print(bits())
        """,
    ),
    "calls itself to the end of the stack": (
        8,
        """
        def deep(level):
            try:
                deep(level + 1)
            except RecursionError:
                pass
            if level == 40:
                step()

        run = watch(model, optimizer, scaler)
        for _ in range(8):
            deep(0)
        print(bits())
        """,
    ),
    "closes its output": (
        6,
        """
        run = watch(model, optimizer, scaler)
        for _ in range(6):
            step()
        print(bits(), flush=True)
        sys.stdout.close()
        sys.stderr.close()
        run.close()
        """,
    ),
    "never had an output": (
        6,
        """
        out = os.dup(1)
        os.set_inheritable(out, False)
        os.closerange(0, 3)
        sys.stdin = sys.stdout = sys.stderr = None
        run = watch(model, optimizer, scaler)
        for _ in range(6):
            step()
        for number in (0, 1, 2):
            try:
                os.write(number, b"into somebody's file")
            except OSError as error:
                os.write(out, f"{error}\\n".encode())
        os.write(out, bits().encode())
        run.close()
        """,
    ),
    "has a log handler that raises": (
        6,
        """
        import logging

        class Broken(logging.Handler):
            def emit(self, record):
                raise RuntimeError("the handler's own")

        logging.getLogger().addHandler(Broken())
        run = watch(model, optimizer, scaler)
        for _ in range(6):
            step()
            run.log(loss="no number")
        print(bits())
        """,
    ),
    "forks in the middle": (
        8,
        """
        run = watch(model, optimizer, scaler)
        for _ in range(4):
            step()
        child = os.fork()
        if child == 0:
            step()
            run.log(metric=1.0)
            run.close()
            os._exit(3)
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
        for _ in range(4):
            step()
        print(bits())
        """,
    ),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_program_trains_the_same_bits_and_its_steps_are_there_when_it(name: str, tmp_path: Path) -> None:
    check_program(*PROGRAMS[name], tmp_path)

"""Training is the same to the last bit while other threads train, evaluate or log."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.agent.watching.fail_open import check_program

pytestmark = pytest.mark.long

PROGRAMS: dict[str, tuple[int, str]] = {
    "trains two models in two threads": (
        20,
        """
        def train(of, batch):
            for _ in range(20):
                step(of=of, x=batch)

        sys.setswitchinterval(1e-5)
        two = [parts(1), parts(2)]
        runs = [watch(*each) for each in two]
        batches = [torch.randn(6, 8), torch.randn(6, 8)]
        threads = [threading.Thread(target=train, args=each) for each in zip(two, batches)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        losses.clear()
        print(bits(*two[0]), bits(*two[1]), threading.active_count())
        for run in runs:
            run.close()
        """,
    ),
    "evaluates in a second thread": (
        20,
        """
        import copy
        run = watch(model, optimizer, scaler)
        batch = torch.randn(6, 8)
        twin = copy.deepcopy(model).eval()
        over = threading.Event()

        def evaluate():
            with torch.no_grad():
                while not over.is_set():
                    twin(batch)
                    model[0](batch)

        sys.setswitchinterval(1e-5)
        thread = threading.Thread(target=evaluate)
        thread.start()
        for _ in range(20):
            step(x=batch)
        over.set()
        thread.join()
        print(bits())
        """,
    ),
    "logs from a second thread": (
        50,
        """
        run = watch(model, optimizer, scaler)
        over = threading.Event()

        def log():
            count = 0
            while not over.is_set():
                run.log(metric=count, other=torch.tensor(float(count)))
                count += 1

        sys.setswitchinterval(1e-5)
        thread = threading.Thread(target=log)
        thread.start()
        batch = torch.randn(6, 8)
        for _ in range(50):
            step(x=batch)
        over.set()
        thread.join()
        print(bits())
        """,
    ),
    "ends while a daemon thread still works": (
        6,
        """
        run = watch(model, optimizer, scaler)

        def work():
            while True:
                run.log(metric=1.0)
                time.sleep(0.0005)

        threading.Thread(target=work, daemon=True).start()
        for _ in range(6):
            step(x=torch.ones(6, 8))
        print(bits(), flush=True)
        """,
    ),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_program_trains_the_same_bits_and_its_steps_are_there_when_it(name: str, tmp_path: Path) -> None:
    check_program(*PROGRAMS[name], tmp_path)

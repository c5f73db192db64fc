"""A watched program ends as a bare one does."""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest

from tests.agent.nursery import twins
from tests.agent.programs import bye
from tests.agent.training import events

pytestmark = pytest.mark.long


ENDS: dict[str, tuple[int, tuple[str, str] | None, str]] = {
    "calls sys.exit in the middle of a step": (4, ("exit", ""), "optimizer.zero_grad(); sys.exit(4)"),
    "raises in the middle of backward": (
        1,
        ("exception", "ValueError: enough"),
        """
        def refuse(gradient):
            raise ValueError("enough")

        model[0].weight.register_hook(refuse)
        step()
        """,
    ),
    "ends by SIGTERM": (-15, None, "os.kill(os.getpid(), signal.SIGTERM)"),
    "handles SIGTERM": (
        5,
        ("exit", ""),
        """
        def leave(number, frame):
            print("leaves")
            sys.exit(5)

        signal.signal(signal.SIGTERM, leave)
        signal.raise_signal(signal.SIGTERM)
        """,
    ),
    "ends at once": (7, None, "os._exit(7)"),
    "ends by an interrupt in forward": (
        -2,
        ("exception", "KeyboardInterrupt"),
        """
        model[1].register_forward_hook(lambda *_: signal.raise_signal(signal.SIGINT))
        step()
        """,
    ),
    "is closed in another thread in the middle": (
        0,
        ("closed", ""),
        """
        thread = threading.Thread(target=run.close)
        thread.start()
        for _ in range(20):
            step(x=torch.ones(6, 8))
        thread.join()
        print(bits())
        """,
    ),
}


@pytest.mark.parametrize("name", ENDS)
def test_a_program_ends_as_it_would_have_ended_when_it(name: str, tmp_path: Path) -> None:
    code, goodbye, body = ENDS[name]
    begin = "run = watch(model, optimizer, scaler)\nfor _ in range(5):\n    step()\nprint(bits(), flush=True)\n"
    both = twins(begin + textwrap.dedent(body), tmp_path)
    assert [] == both.extra_lines()
    assert code == both.watched.code
    frames = both.watched.stream()
    assert goodbye == bye(frames)
    assert [] == events(frames, "probe.failed")

"""Takes the pictures of a run's page that README shows: python -m website.readme_pictures

Trains the reference program at the default budget with a fault, sends what it recorded to a real collector, as if the
run still trained, and takes its page in docs/pictures: run.png on a desktop and run-phone.png on a phone.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

from ammeter.journal.find import find_runs
from tests.server.browsing import chromium, seen_as, show
from tests.server.feeding import serving, wait_until
from website.first_screens import PAINTED, READY, incident, keep_alive, lag_of, send
from website.pages import ROOT

VERDICT = "nonfinite-gradient"
STEPS, FIRST_BAD_STEP, CHECKPOINT_EVERY = 280, 220, 100
PICTURES = ROOT / "docs" / "pictures"
SIZES = {"run": ("light", 1280, 1180), "run-phone": ("dark", 390, 844)}
"""Picture -> colour scheme, width and height."""


def main() -> int:
    """Returns 1 if the run has no such incident."""
    with tempfile.TemporaryDirectory(prefix="gpt-small-") as folder:
        run = train(Path(folder))
        with tempfile.TemporaryDirectory() as place, serving(Path(place)) as client, chromium() as browser:
            send(client, run, "reference", lag_of(run), is_ended=False)
            threading.Thread(target=keep_alive, args=(client, {VERDICT: run}), daemon=True).start()
            title = incident(client, run.name, VERDICT)
            show(browser, client, f"/runs/{run.name}")
            wait_until(lambda: browser.execute_script(READY))
            browser.execute_cdp_cmd("Emulation.setScrollbarsHidden", {"hidden": True})
            browser.execute_script("document.documentElement.style.scrollbarGutter = 'auto'")
            for name, (scheme, width, height) in SIZES.items():
                with seen_as(browser, scheme, width, height):
                    time.sleep(1)  # the page draws its charts anew at this width
                    browser.execute_async_script(PAINTED)
                    browser.save_screenshot(str(PICTURES / f"{name}.png"))
    print(title or f"the run has no incident {VERDICT}")
    return 0 if title else 1


def train(folder: Path) -> Path:
    """Trains the reference program, and returns the folder of the run's journal."""
    command = [sys.executable, str(ROOT / "trainer" / "broken.py"), "--name", "gpt-small", "--steps", str(STEPS)]
    command += ["--fault", f"{VERDICT}@{FIRST_BAD_STEP}"]
    command += ["--checkpoint", str(folder / "gpt-small.pt"), "--checkpoint-every", str(CHECKPOINT_EVERY)]
    environment = {**os.environ, "AMMETER_DIR": str(folder / "journal"), "AMMETER_TAGS": '{"owner": "lena"}'}
    subprocess.run(command, env=environment, stdout=subprocess.DEVNULL, check=True)
    return find_runs(folder / "journal")[0]


if __name__ == "__main__":
    sys.exit(main())

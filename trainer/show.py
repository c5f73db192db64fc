"""What the person at the terminal sees while the run goes on: one line that moves, or plain lines in a pipe."""

import shutil
import sys
import time
from typing import TextIO

BAR = 24


class Show:
    """The state of the run, told now and then. Reading a loss waits for the device, so only every few steps."""

    def __init__(self, steps: int, done: int, stream: TextIO | None = None) -> None:
        self.stream = stream or sys.stdout
        self.moving = self.stream.isatty()
        self.steps, self.first, self.began = steps, done, time.perf_counter()
        self.beside = ""

    def line(self, text: str) -> None:
        """A line that stays."""
        if self.moving:
            self.stream.write("\r\033[K")
        self.stream.write(text + "\n")
        self.stream.flush()

    def bar(self, done: int) -> None:
        """The bar, where there is a terminal for it to move on."""
        if not self.moving:
            return
        left = (self.steps - done) * (time.perf_counter() - self.began) / max(1, done - self.first)
        full = BAR * done // self.steps
        line = f"{'█' * full}{'·' * (BAR - full)} {done}/{self.steps}  {self.beside}  {left:.0f} s left"
        self.stream.write("\r\033[K" + line[: shutil.get_terminal_size().columns - 1])
        self.stream.flush()

    def numbers(self, done: int, text: str) -> None:
        """New numbers: beside the bar, or as a line."""
        self.beside = text
        if not self.moving:
            self.line(f"step {done:>{len(str(self.steps))}}/{self.steps}  {text}")

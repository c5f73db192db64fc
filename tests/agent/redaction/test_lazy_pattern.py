"""A pattern that is compiled late behaves as one that is compiled at once."""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
from pathlib import Path

from ammeter.redaction.lazy_pattern import pattern

WATCH = """
import re, sys
compiled = []
compile_ = re._compile
re._compile = lambda regex, flags: (compiled.append(str(regex)), compile_(regex, flags))[1]
import torch, ammeter
model = torch.nn.Linear(2, 2)
ammeter.watch(model, torch.optim.SGD(model.parameters(), lr=0.1), dir=sys.argv[1]).close()
print(any("rubygems" in regex for regex in compiled))
"""


def test_it_searches_and_substitutes_as_the_compiled_one() -> None:
    late, early = pattern(r"(?P<word>ab+)c", re.IGNORECASE), re.compile(r"(?P<word>ab+)c", re.IGNORECASE)
    text = "xABBCyabcz"
    for _ in range(2):
        assert late.sub("-", text) == early.sub("-", text)
        assert [match["word"] for match in late.finditer(text)] == ["ABB", "ab"]
    assert (late.pattern, late.flags) == (early.pattern, early.flags)


def test_a_run_without_secrets_does_not_compile_the_forms_of_tokens() -> None:
    with tempfile.TemporaryDirectory() as folder:  # the names of pytest's folders resemble tokens
        program = Path(folder, "program.py")
        program.write_text(WATCH)
        done = subprocess.run([sys.executable, program, folder], cwd=folder, capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"

"""Fills templates: draws names and alternatives from a seed, so that a program and its twin get the same ones.

`$name` is a name, `<<a~~b>>` one of two texts. Every draw depends on the seed and on the text alone, not on the order.
"""

from __future__ import annotations

import random
import re

_ALTERNATIVES = re.compile(r"<<((?:(?!<<|>>).)*)>>", re.DOTALL)
_NAME = re.compile(r"\$([A-Za-z_]\w*)")

_USUAL = {
    "model": ("model", "net", "network", "module_", "encoder"),
    "opt": ("optimizer", "opt", "optim", "solver"),
    "opt2": ("optimizer_head", "opt_b", "second_optimizer", "head_solver"),
    "scaler": ("scaler", "amp_scaler", "grad_scale", "loss_scaler"),
    "loss": ("loss", "objective", "total_loss", "err"),
    "x": ("x", "inputs", "batch_x", "features"),
    "y": ("y", "targets", "labels", "batch_y"),
    "step": ("step", "i", "it", "iteration", "global_step"),
    "out": ("out", "logits", "prediction", "scores_"),
    "h": ("h", "z", "hidden", "act"),
    "blocks": ("blocks", "layers", "stages", "body"),
    "head": ("head", "classifier", "readout", "to_logits"),
    "sched": ("scheduler", "schedule", "lr_sched", "sched"),
    "Net": ("Net", "Model", "Backbone", "Classifier"),
}

_WORDS = re.findall(
    r"\w+",
    "amber birch cedar delta ember field grain harbor inlet jolt kite ledge maple north ocean pine quill ridge stone"
    " tidal upper vale willow yarrow zinc anchor brook crest dune east fern glade heath isle larch moss noon oak pearl",
)


class Names:
    """Names of one program. A name that is asked for twice is the same."""

    def __init__(self, seed: int, fixed: dict[str, str]) -> None:
        self.seed = seed
        self._names = dict(fixed)

    def fill(self, template: str) -> str:
        """Replaces alternatives and names."""
        while _ALTERNATIVES.search(template):
            template = _ALTERNATIVES.sub(lambda match: self._choice(match[1].split("~~"), match[0]), template)
        return _NAME.sub(lambda match: self[match[1]], template)

    def __getitem__(self, key: str) -> str:
        if key not in self._names:
            self._names[key] = self._drawn(key)
        return self._names[key]

    def with_prefix(self, prefix: str, *keys: str) -> None:
        """Makes names attributes, such as `self.model`."""
        for key in keys:
            self._names[key] = prefix + self[key]

    def _choice(self, options: list[str], salt: str) -> str:
        return random.Random(f"{self.seed}:{salt}").choice(options)

    def _drawn(self, key: str) -> str:
        taken = set(self._names.values())
        for attempt in range(1000):
            salt = f"{key}:{attempt}"
            name = (
                self._choice(list(_USUAL[key]), salt) if key in _USUAL and attempt < 20 else self._two_words(key, salt)
            )
            if name not in taken:
                return name
        raise ValueError(f"no free name for {key}")

    def _two_words(self, key: str, salt: str) -> str:
        first, second = self._choice(_WORDS, salt + "a"), self._choice(_WORDS, salt + "b")
        return first.title() + second.title() if key[0].isupper() else f"{first}_{second}"

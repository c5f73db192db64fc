"""What a program is made of: one value of each dimension, and whether the values go together."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass, fields
from hashlib import sha256

from bench.wild.faults import FAULTS
from bench.wild.pieces.architectures import ARCHITECTURES
from bench.wild.pieces.optimizers import OPTIMIZERS
from bench.wild.pieces.slots import SCALED
from bench.wild.pieces.styles import STYLES

ATTACHMENTS = ("watch", "run", "late")

PACES = {"1ms": 240, "5ms": 160, "20ms": 120, "80ms": 80, "200ms": 50, "size": 80}
"""Steps of a program by the time of a step. `size` has large tensors instead of a pause."""

KINDS = ("fault", "twin", "alike")

HELD_OUT_SHARE = 3
"""One of so many spellings of a fault is kept for fresh draws."""


@dataclass(frozen=True)
class Recipe:
    """The values of all dimensions, and the seed of names and structure."""

    fault: str
    spelling: str
    course: str
    style: str
    arch: str
    optimizer: str
    precision: str
    attach: str
    pace: str
    seed: int = 0

    def __str__(self) -> str:
        return "/".join(str(getattr(self, field.name)) for field in fields(self))

    @staticmethod
    def parse(text: str) -> Recipe:
        *values, seed = text.split("/")
        if len(values) != len(fields(Recipe)) - 1 or not seed.isdigit():
            raise ValueError(f"{text!r} is no program; use an id from the table, such as {EXAMPLE}")
        names = (field.name for field in fields(Recipe))
        recipe = Recipe(**dict(zip(names, values, strict=False)), seed=int(seed))
        if not possible(recipe):
            raise ValueError(f"{text!r} is no possible program; use an id from the table, such as {EXAMPLE}")
        return recipe

    @property
    def steps(self) -> int:
        return PACES[self.pace]

    @property
    def held_out(self) -> bool:
        return STYLES[self.style].held_out or self.spelling in held_out_spellings(self.fault)


EXAMPLE = "clip-before-unscale/helper/every-7/class/mlp/sgd/fp16/run/20ms/3"


def held_out_spellings(fault: str) -> set[str]:
    """The spellings of a fault that only fresh draws use, a third, chosen by a hash of their names."""
    names = sorted(FAULTS[fault].spellings, key=lambda name: sha256(f"{fault}:{name}".encode()).hexdigest())
    return set(names[: len(names) // HELD_OUT_SHARE])


def possible(recipe: Recipe) -> bool:
    """Whether the values go together."""
    fault = FAULTS.get(recipe.fault)
    if fault is None or recipe.spelling not in fault.spellings or recipe.pace not in PACES:
        return False
    if recipe.style not in STYLES or recipe.arch not in ARCHITECTURES or recipe.attach not in ATTACHMENTS:
        return False
    return (
        recipe.course in fault.courses
        and recipe.precision in fault.precisions
        and (not fault.styles or recipe.style in fault.styles)
        and recipe.style not in fault.without_styles
        and (not fault.archs or recipe.arch in fault.archs)
        and (not fault.optimizers or recipe.optimizer in fault.optimizers)
        and _fits_style(recipe)
    )


def _fits_style(recipe: Recipe) -> bool:
    style, fault = STYLES[recipe.style], FAULTS[recipe.fault]
    closure = OPTIMIZERS[recipe.optimizer].closure if recipe.optimizer in OPTIMIZERS else True
    has_own_steps = style.slots or style.runs_steps or recipe.style in ("accumulation", "two-optimizers")
    if closure and (recipe.precision in SCALED or has_own_steps):
        return False
    if style.precisions and recipe.precision not in style.precisions:
        return False
    if style.slots and not fault.spellings[recipe.spelling].slots <= style.slots:
        return False
    if recipe.style == "resume" and (recipe.attach == "late" or recipe.course not in ("constant", "late")):
        return False
    if recipe.style == "ranks" and recipe.attach == "late":
        return False
    return not (recipe.fault == "stagnation" and recipe.pace != "1ms")


def drawn(rng: random.Random) -> Iterator[Recipe]:
    """Possible recipes, drawn without end. Faults are drawn equally often, whatever goes with them."""
    while True:
        name = rng.choice(list(FAULTS))
        fault = FAULTS[name]
        recipe = Recipe(
            name,
            rng.choice(list(fault.spellings)),
            rng.choice(fault.courses),
            rng.choice(fault.styles or list(STYLES)),
            rng.choice(fault.archs or list(ARCHITECTURES)),
            rng.choice(fault.optimizers or list(OPTIMIZERS)),
            rng.choice(fault.precisions),
            rng.choice(ATTACHMENTS),
            rng.choice(list(PACES)),
            rng.randrange(10**6),
        )
        if possible(recipe):
            yield recipe

"""Assembles the source text of a program from its recipe, for each kind: with the fault, repaired, and look-alike."""

from __future__ import annotations

import random
import re
import textwrap
from collections.abc import Mapping
from dataclasses import dataclass

from bench.wild.faults import FAULTS, Spelling
from bench.wild.faults.training import REDUCED
from bench.wild.names import Names
from bench.wild.pieces import courses
from bench.wild.pieces.architectures import ARCHITECTURES, MIDDLE
from bench.wild.pieces.frame import BUILD, DATA, TOP
from bench.wild.pieces.optimizers import OPTIMIZERS, OWN_SCALER
from bench.wild.pieces.slots import (
    AUTOCASTS,
    CLIP_HELPERS,
    CLIPS,
    EVALUATE,
    SCALED,
    defaults,
    scaler_names,
    scaler_texts,
)
from bench.wild.pieces.style import APPLY, COMPUTE, FETCH, WITH_CLOSURE
from bench.wild.pieces.styles import STYLES
from bench.wild.recipe import Recipe

LATE_STEP = 9
"""The step before which a late `watch()` comes."""

PAUSE_SECONDS = {"1ms": 0.0, "5ms": 0.004, "20ms": 0.018, "80ms": 0.078, "200ms": 0.198, "size": 0.0}

_IN_MODULES = ("mid", "mid_out", "criterion", "data")
"""Slots that are no part of the loop and read the step from a list."""

_TRAINING = ("model", "opt", "opt2", "scaler", "sched", "average", "before")
_STEP = ("loss", "outer")

_PLACE = "  #@place"
_BACK = re.compile(r"^( *)@back\((.*)\)( *#@place)?$", re.MULTILINE)
_MACRO = re.compile(r"\$([a-z_]\w*)")


@dataclass(frozen=True)
class Program:
    """Source text.

    Attributes:
        text: What is trained and watched.
        recorded: The same lines with calls of the recorder, and without Ammeter.
        place_lines: Lines that a report may name as the place of the fault.
        place_module: The module that has the fault, if it is in the forward pass.
        onset: The first step with the fault.
        first_watched: The step of the program that is Ammeter's step 0.
    """

    text: str
    recorded: str
    place_lines: frozenset[int]
    place_module: str
    onset: int
    first_watched: int


def assemble(recipe: Recipe, kind: str) -> Program | None:
    """The program of a kind; None for a look-alike of a spelling that has none."""
    spelling = FAULTS[recipe.fault].spellings[recipe.spelling]
    if kind == "alike" and spelling.alike is None:
        return None
    return _Assembly(recipe, kind, spelling).program()


class _Assembly:
    def __init__(self, recipe: Recipe, kind: str, spelling: Spelling) -> None:
        self.recipe, self.kind, self.spelling = recipe, kind, spelling
        self.style, self.fault = STYLES[recipe.style], FAULTS[recipe.fault]
        self.course = courses.course(recipe.course, recipe.steps)
        self.rng = random.Random(recipe.seed)
        self.clip = (
            self.rng.choice(self.fault.clips or ("", *CLIPS)) if not OPTIMIZERS[recipe.optimizer].closure else ""
        )
        self.evaluates = recipe.course == "after-eval" or self.rng.random() < 0.5
        self.slots = self._slots()
        self.macros = self._macros()
        self.names = Names(recipe.seed, self._fixed_names())
        prefix = self.names.fill(self.style.prefix)
        if prefix:
            self.names.with_prefix(prefix, *_TRAINING, *(_STEP if self.style.runs_steps else ()))

    def program(self) -> Program:
        parts = [TOP, self._code(), ARCHITECTURES[self.recipe.arch].code, DATA, self._arranged()]
        template = "\n\n".join(part.strip("\n") for part in parts if part.strip()) + "\n"
        text = self._expanded(template)
        places = frozenset(number for number, line in enumerate(text.splitlines(), 1) if _PLACE in line)
        text = text.replace(_PLACE, "")
        return Program(
            self._finished(text, recorded=False),
            self._finished(text, recorded=True),
            places if self.kind == "fault" else frozenset(),
            MIDDLE.format(blocks=self.names["blocks"]) if self.fault.place == "module" else "",
            self.course.onset,
            LATE_STEP if self.recipe.attach == "late" else 0,
        )

    def _slots(self) -> dict[str, str]:
        recipe, style = self.recipe, self.style
        slots = defaults(recipe.precision, self.clip)
        slots |= {name: text for name, text in style.texts.items() if name in slots and (name != "clip" or self.clip)}
        if style.optimizers == 2:
            make = OPTIMIZERS[recipe.optimizer].make.format
            slots["make_optimizer"] = (
                f"$opt = {make(params='list($model.parameters())[:4]')}\n"
                f"$opt2 = {make(params='list($model.parameters())[4:]')}"
            )
        if recipe.style == "ranks":
            slots["reduce"] = REDUCED
        slots["evaluate"] = self._between_steps()
        slots["inputs"] = ARCHITECTURES[recipe.arch].inputs.strip("\n")
        slots["end"] = 'print("weights", $digest($model))'
        good = {**slots, **self._stripped(self.spelling.good)}
        if self.kind == "twin":
            return self._for_all_optimizers(good)
        changed = self._stripped((self.spelling.bad if self.kind == "fault" else self.spelling.alike) or {})
        merged = dict(good)
        for name in {*changed, *self.spelling.good}:
            merged[name] = self._timed(name, changed.get(name, slots[name]), good[name])
        return self._for_all_optimizers(self._with_places(merged))

    def _stripped(self, texts: Mapping[str, str]) -> dict[str, str]:
        """Texts of slots. With ranks, a change of the gradients comes after their reduction."""
        texts = {name: text.strip("\n") for name, text in texts.items()}
        if "reduce" in texts and self.recipe.style == "ranks" and not self.fault.styles:
            texts["reduce"] = f"{REDUCED}\n{texts['reduce']}"
        return texts

    def _timed(self, slot: str, bad: str, good: str) -> str:
        """The bad text while the fault is there, else the good one."""
        marked = "\n".join(line + _PLACE for line in bad.splitlines())
        if not self.course.condition or bad == good:
            return marked
        condition = self.course.condition.format(t="$clock[0]" if slot in _IN_MODULES else "$step")
        text = f"if {condition}:\n{textwrap.indent(marked or 'pass', '    ')}"
        return f"{text}\nelse:\n{textwrap.indent(good, '    ')}" if good else text

    def _with_places(self, slots: dict[str, str]) -> dict[str, str]:
        for name in self.fault.place_slots:
            slots[name] = "\n".join(
                line if _PLACE in line or line.lstrip().startswith(("if ", "else:")) else line + _PLACE
                for line in slots[name].splitlines()
            )
        return slots

    def _for_all_optimizers(self, slots: dict[str, str]) -> dict[str, str]:
        """With two optimizers, repeats what is done with the first one."""
        if self.style.optimizers == 2:
            for name in ("reset", "unscale", "clip", "step", "after_build"):
                if re.search(r"\$opt\b", slots[name]):
                    slots[name] += "\n" + re.sub(r"\$opt\b", "$opt2", slots[name])
        return slots

    def _between_steps(self) -> str:
        texts = [EVALUATE.strip("\n")] if self.evaluates else []
        if self.recipe.course == "phase":
            lower = 'for $group in $opt.param_groups: $group["lr"] = $group["lr"] * 0.5'
            texts.append(f"if $step == {self.course.onset - 1}:\n    {lower}")
        return "\n".join(texts)

    def _macros(self) -> dict[str, str]:
        recipe = self.recipe
        make = OPTIMIZERS[recipe.optimizer].make
        functional = recipe.style == "functional"
        scaler = dict(scaler_texts(recipe.precision))
        if not self.slots["make_scaler"]:
            scaler["scale_now"] = "1.0"
        elif recipe.precision not in SCALED:  # a scaler that the fault adds has a scale, too
            scaler["scale_now"] = "$scaler.get_scale()"
        half_state = make.replace("lr=", "dtype=torch.{}, lr=")
        objects = ["$model", "$opt", *(["$opt2"] if self.style.optimizers == 2 else [])]
        objects += ["$scaler"] if self.slots["make_scaler"] else []
        return {
            **scaler,
            "make_opt": make.format(params="$model.parameters()"),
            "make_without_eps": make.replace("$eps", "0.0").format(params="$model.parameters()"),
            "make_half_state": half_state.replace("{}", "bfloat16").format(params="$model.parameters()"),
            "make_fp16_state": half_state.replace("{}", "float16").format(params="$model.parameters()"),
            "make_on_copy": make.format(params="copy.deepcopy($model).parameters()"),
            **self._of_framework(),
            "make_low_scaler": '$scaler = torch.amp.GradScaler("cpu", init_scale=64.0, growth_interval=30)',
            "autocast": AUTOCASTS[recipe.precision],
            "predict": "torch.func.functional_call($model, dict($model.named_parameters()), ($x,))"
            if functional
            else "$model($x)",
            "objects": ", ".join(objects),
            **{name: text for name, text in self.style.texts.items() if name not in self.slots},
        }

    def _of_framework(self) -> dict[str, str]:
        """What a framework is told instead of lines of the program."""
        precision = self.recipe.precision
        mixed = {"fp16": '"16-mixed"', "bf16": '"bf16-mixed"'}.get(precision)
        scaler = "$scaler" if self.slots["make_scaler"] else "None"
        return {
            "mixed": "bf16" if precision == "bf16" else "no",
            "in_bf16": str(precision == "bf16"),
            "plugin": f'MixedPrecision({mixed}, "cpu", {scaler})' if mixed else "Precision()",
            "clip_limit": "$limit" if self.clip else "0.0",
        }

    def _fixed_names(self) -> dict[str, str]:
        recipe = self.recipe
        large, tiny = recipe.pace == "size", OPTIMIZERS[recipe.optimizer].closure
        pause = PAUSE_SECONDS[recipe.pace] / (4 if recipe.style == "accumulation" else 1)
        return {
            **scaler_names(recipe.precision),
            "seed": str(recipe.seed),
            "data_seed": f"{recipe.seed} + 1000003 * int(os.environ.get('RANK', 0))",
            "pause": str(pause),
            "steps": str(recipe.steps),
            "every": str(courses.EVALUATION_STEPS),
            "rows": "64" if large and not tiny else "16",
            "width": "64" if large and not tiny else "32",
            "limit": self.rng.choice(["1.0", "0.5", "2.0"]),
            "value_limit": "0.1",
            "init_scale": self.rng.choice(["2.0**10", "4096.0", "2.0**16"]),
            "growth": self.rng.choice(["40", "200", "2000"]),
            "eps": "1e-8",
            "half": "torch.float16" if recipe.precision in ("fp16", "own-scaler") else "torch.bfloat16",
        }

    def _code(self) -> str:
        """Classes and functions beside the network."""
        code = "\n".join(
            line + _PLACE if line.strip() else line for line in self.spelling.code.strip("\n").splitlines()
        )
        clip = CLIP_HELPERS.get(self.clip, "") if "$shorten" not in code else ""
        own = OWN_SCALER if self.recipe.precision == "own-scaler" else ""
        return "\n\n".join(
            part.strip("\n") for part in (clip, own, OPTIMIZERS[self.recipe.optimizer].code, code) if part
        )

    def _arranged(self) -> str:
        """The style's template with the build and the steps in it."""
        iteration = WITH_CLOSURE if OPTIMIZERS[self.recipe.optimizer].closure else self.style.iteration
        self.slots |= {
            "build": BUILD,
            "iteration": iteration,
            "fetch": FETCH,
            "first_half": FETCH + COMPUTE,
            "second_half": APPLY,
        }
        return self.style.text

    def _expanded(self, template: str) -> str:
        """Fills slots, then macros, then names."""
        slot = re.compile(rf"^( *)@({'|'.join(self.slots)})$", re.MULTILINE)
        while slot.search(template):
            template = slot.sub(lambda match: textwrap.indent(self.slots[match[2]].strip("\n"), match[1]), template)
        template = "\n".join(line for line in template.splitlines() if line.strip() or not line) + "\n"
        template = re.sub(r"\n{3,}", "\n\n\n", template)
        back = self._functional_back if self.recipe.style == "functional" else r"\1(\2).backward()\3"
        template = _BACK.sub(back, template)
        for _ in range(3):
            template = _MACRO.sub(lambda match: self.macros.get(match[1], match[0]), template)
        return self.names.fill(template)

    def _functional_back(self, match: re.Match[str]) -> str:
        weights = "list($model.parameters())"
        grads = f"torch.autograd.grad({match[2]}, {weights}, allow_unused=True)"
        return f"{match[1]}for $p, $g in zip({weights}, {grads}): $p.grad = $g{match[3] or ''}"

    def _finished(self, text: str, *, recorded: bool) -> str:
        """Replaces the lines for the recorder and the attachment; both texts have the same lines."""
        own = self.recipe.precision == "own-scaler"
        scaler = "$scaler" if self.slots["make_scaler"] and not own else "None"
        optimizer = "[$opt, $opt2]" if self.style.optimizers == 2 else "$opt"
        watch = f"import ammeter; ammeter.watch($model, {optimizer}, {scaler})"
        attach = watch if self.recipe.attach == "watch" and not recorded else "pass"
        late = f"if $step == {LATE_STEP}: {watch}" if self.recipe.attach == "late" and not recorded else "pass"
        gradients = "__wild__.gradients($model, $scale_now)" if recorded else "pass"
        unscaled = "__wild__.unscaled($model)" if recorded else "pass"
        stepped = "__wild__.stepped($model)" if recorded else "pass"
        step = "__wild__.step($step, $loss, $model, $scale_now)" if recorded else "pass"
        lines = {
            "attach": attach,
            "late": late,
            "gradients": gradients,
            "unscaled": unscaled,
            "stepped": stepped,
            "step": step,
        }
        marks = re.compile(rf"#@({'|'.join(lines)})$", re.MULTILINE)
        return marks.sub(lambda match: self._expanded_line(lines[match[1]]), text)

    def _expanded_line(self, line: str) -> str:
        return self.names.fill(_MACRO.sub(lambda match: self.macros.get(match[1], match[0]), line))

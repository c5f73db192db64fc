"""What several ranks measured comes to what the whole model has."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from ammeter.wire.columns import ABSENT, View, measured
from ammeter.wire.frames import STATS, Schema, Tensor
from ammeter.wire.ranks import Life, is_sharded, lives, merged
from tests.agent.stream_builder import Stream
from tests.agent.stream_judgement import views

Array = npt.NDArray[np.float64]

SHAPES = {"embed.weight": (11, 4), "fc.weight": (6, 4), "fc.bias": (3,), "head.weight": (2, 4)}
SEEDS = (0, 1, 2)


def gradients(seed: int, steps: int = 4) -> list[dict[str, Array]]:
    """Of a whole model, step by step."""
    dice = np.random.default_rng(seed)
    return [{name: dice.normal(0, 10.0**step, shape) for name, shape in SHAPES.items()} for step in range(steps)]


def norms(gradients: Mapping[str, Array]) -> list[float]:
    return [float(np.linalg.norm(gradient)) for gradient in gradients.values()]


def split(gradients: Mapping[str, Array], shards: int, copies: int) -> list[list[tuple[str, Array]]]:
    """What each of shards x copies ranks has: ceil(rows / shards) rows, as torch cuts them, the last ones less."""
    parts: list[list[tuple[str, Array]]] = [[] for _ in range(shards)]
    for name, gradient in gradients.items():
        rows = -(-len(gradient) // shards)
        for rank in range(shards):
            parts[rank].append((name, gradient[rank * rows : (rank + 1) * rows]))
    return parts * copies


def told(steps: Sequence[Sequence[tuple[str, Array]]], copies: int, **more: Any) -> View:
    """The stream of a rank that reads its part at each step; of an empty part there is nothing to read."""
    stream = Stream([Tensor(name, part.shape, "float32", copies) for name, part in steps[0]], **more)
    for parts in steps:
        found = [part for _, part in parts]
        stats: dict[str, Sequence[float]] = {
            "grad.norm": of(found, np.linalg.norm),
            "grad.absmax": of(found, lambda part: np.abs(part).max()),
            "grad.zeros": of(found, lambda part: (part == 0).sum()),
        }
        held = [part for part in found if part.size]
        largest = {"grad_absmax": max(float(np.abs(part).max()) for part in held)} if held else {}
        stream.step(stats=stats, **largest)
    (view,) = views(stream.frames)
    return view


def of(parts: Sequence[Array], number: Any) -> list[float]:
    return [float(number(part)) if part.size else ABSENT for part in parts]  # type: ignore[misc]


def only(found: Sequence[View]) -> View:
    (view,) = found
    return view


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize(("shards", "copies"), [(1, 1), (2, 1), (4, 1), (7, 1), (2, 2), (3, 2)])
def test_the_norm_of_the_whole_is_that_of_the_model_in_one_piece(seed: int, shards: int, copies: int) -> None:
    whole = gradients(seed)
    parts = [split(step_gradients, shards, copies) for step_gradients in whole]
    world = shards * copies
    ranks = {rank: [told([step[rank] for step in parts], copies)] for rank in range(world)}
    found = only(list(merged(ranks, world)))
    expected = np.array([norms(entries) for entries in whole]).T
    assert [0, 1, 2, 3] == found.steps.tolist()
    np.testing.assert_allclose(found.stat("grad.norm"), expected, rtol=1e-6)
    np.testing.assert_allclose(found.scalar("grad_norm"), np.sqrt((expected**2).sum(axis=0)), rtol=1e-6)
    assert [math.prod(shape) for shape in SHAPES.values()] == found.numel.tolist()
    absmax = [[float(np.float32(np.abs(step_gradients[name]).max())) for step_gradients in whole] for name in SHAPES]
    assert absmax == found.stat("grad.absmax").tolist()
    assert np.max(absmax, axis=0).tolist() == found.scalar("grad_absmax").tolist()


@pytest.mark.parametrize("world", [1, 2, 5])
def test_what_lies_whole_on_every_rank_counts_once(world: int) -> None:
    whole = gradients(3)
    for step_gradients in whole:
        step_gradients["fc.weight"][2:4] = 0
    parts = [list(step_gradients.items()) for step_gradients in whole]
    found = only(list(merged({rank: [told(parts, 0)] for rank in range(world)}, world)))
    np.testing.assert_allclose(
        found.stat("grad.norm"), np.array([norms(step_gradients) for step_gradients in whole]).T, rtol=1e-6
    )
    assert [8.0] * 4 == found.stat("grad.zeros")[1].tolist()
    assert SHAPES["fc.weight"] == found.schema.tensors[1].shape


def test_zeros_of_all_shards_add_up() -> None:
    whole = gradients(4)
    for step_gradients in whole:
        step_gradients["embed.weight"][1:9] = 0
    parts = [split(step_gradients, 3, 2) for step_gradients in whole]
    ranks = {rank: [told([step[rank] for step in parts], 2)] for rank in range(6)}
    assert [32.0] * 4 == only(list(merged(ranks, 6))).stat("grad.zeros")[0].tolist()


def test_ranks_of_a_pipeline_each_bring_their_own_tensors() -> None:
    first, second = Tensor("first.weight", (4,), "float32"), Tensor("second.weight", (4,), "float32")
    ranks = {
        0: views(Stream([first]).step(stats={"grad.norm": [3.0]}).frames),
        1: views(Stream([second]).step(stats={"grad.norm": [4.0]}).frames),
    }
    found = only(list(merged(ranks, 2)))
    assert [["first.weight", "second.weight"], [[3.0], [4.0]], [5.0]] == [
        [tensor.name for tensor in found.schema.tensors],
        found.stat("grad.norm").tolist(),
        found.scalar("grad_norm").tolist(),
    ]


SHARDED = [Tensor("a", (2,), "float32", 1), Tensor("b", (2,), "float32", 1)]


def measuring(*steps: tuple[int, Sequence[Any]], tensors: Sequence[Tensor] = SHARDED) -> Stream:
    stream = Stream(tensors)
    for step, numbers in steps:
        stream.next_step = step
        stream.step(stats={"grad.norm": numbers})
    return stream


@pytest.mark.parametrize("cuts", [(), (2,), (1, 2, 3, 4, 5, 6)])
def test_steps_that_a_rank_lacks_are_left_out_however_streams_are_cut(cuts: Sequence[int]) -> None:
    first = measuring(*((step, [3.0, 0.0]) for step in (0, 1, 2, 3, 5, 9)))
    second = measuring(*((step, [4.0, 0.0]) for step in (1, 3, 4, 5, 6, 7, 8)))
    found = list(merged({0: views(first.frames, cuts), 1: views(second.frames, (3, 4))}, 2))
    assert [1, 3, 5] == [step for view in found for step in view.steps.tolist()]
    assert {5.0} == {norm for view in found for norm in view.scalar("grad_norm").tolist()}


def test_of_a_step_that_a_rank_did_not_read_in_full_no_norm_is_told() -> None:
    first = measuring((0, [3.0, 1.0]), (1, [3.0, 1.0]), (2, [3.0, ABSENT]))
    second = measuring((0, [ABSENT, ABSENT]), (1, [4.0, ABSENT]), (2, [4.0, ABSENT]))
    found = only(list(merged({0: views(first.frames), 1: views(second.frames)}, 2)))
    assert [False, False, True] == measured(found.scalar("grad_norm")).tolist()
    assert 5.0 == found.scalar("grad_norm")[2]
    assert [[False, True, True], [False, False, False]] == measured(found.stat("grad.norm")).tolist()


def test_a_rank_that_holds_nothing_is_not_waited_for() -> None:
    empty = [Tensor("a", (0,), "float32", 1), Tensor("b", (0,), "float32", 1)]
    ranks = {
        0: views(measuring((0, [3.0, 4.0])).frames),
        1: views(measuring((0, [ABSENT, ABSENT]), tensors=empty).frames),
    }
    assert [5.0] == only(list(merged(ranks, 2))).scalar("grad_norm").tolist()


@pytest.mark.parametrize(("bad", "shown"), [(math.nan, "nan"), (math.inf, "inf")])
@pytest.mark.filterwarnings("error")
def test_what_is_not_finite_on_one_rank_is_not_finite(bad: float, shown: str) -> None:
    first, second = measuring((0, [3.0, 1.0])), measuring((0, [4.0, bad]))
    found = only(list(merged({0: views(first.frames), 1: views(second.frames)}, 2)))
    assert [5.0] == found.stat("grad.norm")[0].tolist()
    assert [True, True] == measured(np.array([found.stat("grad.norm")[1, 0], found.scalar("grad_norm")[0]])).tolist()
    assert [shown, shown] == [str(found.stat("grad.norm")[1, 0]), str(found.scalar("grad_norm")[0])]


def test_shards_of_which_one_is_missing_are_no_whole_but_copies_are() -> None:
    assert [] == list(merged({0: views(measuring((0, [3.0, 4.0])).frames)}, 2))
    copies = [Tensor("a", (2,), "float32"), Tensor("b", (2,), "float32")]
    assert [5.0] == only(list(merged({0: views(measuring((0, [3.0, 4.0]), tensors=copies).frames)}, 2))).scalar(
        "grad_norm"
    ).tolist()
    assert (True, False) == (is_sharded(Schema(tensors=tuple(SHARDED))), is_sharded(Schema(tensors=tuple(copies))))


def test_nobody_is_no_whole() -> None:
    assert [] == list(merged({}, 1))
    assert [] == list(merged({0: []}, 1))


def test_tensors_of_one_name_are_told_apart_by_their_order() -> None:
    twice = [Tensor("group0.0", (2,), "float32", 1), Tensor("group0.0", (2,), "float32", 1)]
    ranks = {rank: views(measuring((0, [3.0, 30.0]), tensors=twice).frames) for rank in range(2)}
    assert pytest.approx([3 * 2**0.5, 30 * 2**0.5]) == only(list(merged(ranks, 2))).stat("grad.norm")[:, 0].tolist()


def test_many_numbers_are_looked_at_in_portions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ammeter.wire.ranks.MAX_VALUES", 10)
    ranks = {rank: views(measuring(*((step, [3.0, 4.0]) for step in range(9))).frames) for rank in range(2)}
    found = list(merged(ranks, 2))
    assert [2, 2, 2, 2, 1] == [len(view) for view in found]
    assert list(range(9)) == [step for view in found for step in view.steps.tolist()]


def test_columns_that_stay_have_their_meaning() -> None:
    from ammeter.wire.frames import SCALARS
    from ammeter.wire.ranks import SCALARS as KEPT
    from ammeter.wire.ranks import STATS as KEPT_STATS

    assert set(KEPT) <= set(SCALARS)
    assert set(KEPT_STATS) <= set(STATS)


def ranks_of(found: list[list[Life]]) -> list[list[str]]:
    return [[life.stream for life in together] for together in found]


def test_ranks_that_start_one_after_the_other_live_together() -> None:
    assert [["a", "b", "c"]] == ranks_of(lives([Life("c", 2, 3, 5), Life("a", 0, 3, 9), Life("b", 1, 3, 7)]))


def test_a_rank_that_comes_again_begins_another_life_of_all() -> None:
    streams = [Life("a", 0, 2, 1, 50), Life("b", 1, 2, 2, 40), Life("c", 0, 2, 60), Life("d", 1, 2, 59)]
    assert [["a", "b"], ["c", "d"]] == ranks_of(lives(streams))


def test_a_rank_that_died_before_it_spoke_does_not_join_the_life_before() -> None:
    assert [["a"], ["c", "d"]] == ranks_of(lives([Life("a", 0, 2, 1, 50), Life("d", 1, 2, 59), Life("c", 0, 2, 60)]))


def test_nobody_has_no_life() -> None:
    assert [] == lives([])

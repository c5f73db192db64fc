from __future__ import annotations

import copy
import io
import pickle
import re
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch.nn.parallel import DataParallel, DistributedDataParallel

from ammeter.torch_hooks import patch
from ammeter.torch_hooks.forward_calls import RAISED, Forward

pytestmark = [pytest.mark.filterwarnings(f"ignore::{kind}") for kind in ("DeprecationWarning", "UserWarning")]
"""torch warns itself and its users while it compiles."""


class Net(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = torch.nn.Linear(4, 4)
        self.rest = torch.nn.Sequential(torch.nn.BatchNorm1d(4), torch.nn.ReLU(inplace=True))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.rest(self.first(x))
        return found


class Recursive(torch.nn.Module):
    def forward(self, x: torch.Tensor, depth: int = 3) -> torch.Tensor:
        return self(x + 1, depth=depth - 1) if depth else x


def sequential() -> torch.nn.Module:
    return torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.ReLU()))


MODELS = {"Net": Net, "Sequential": sequential}


class Heard:
    """A watched model and the calls that were heard: (class of what was called, ended well)."""

    def __init__(self, model: torch.nn.Module) -> None:
        self.forward = Forward([weakref.ref(model)])
        self.calls: list[tuple[str, bool]] = []
        self._handles: list[Any] = [*self.forward.attach()]
        self._handles.append(self.forward.subscribe(after=self._after))

    def _after(self, module: torch.nn.Module, args: Any, kwargs: Any, output: Any) -> None:
        self.calls.append((type(module).__name__, output is not RAISED))

    def take(self) -> list[tuple[str, bool]]:
        calls, self.calls = self.calls, []
        return calls

    def close(self) -> None:
        for handle in self._handles:
            handle.remove()


@pytest.fixture(params=MODELS)
def model(request: pytest.FixtureRequest) -> torch.nn.Module:
    torch.manual_seed(0)
    return MODELS[request.param]().eval()


@pytest.fixture
def heard(model: torch.nn.Module) -> Iterator[Heard]:
    torch._dynamo.reset()
    heard = Heard(model)
    yield heard
    heard.close()
    torch._dynamo.reset()
    assert [] == patch.attached()


X = torch.ones(2, 4)


def test_a_call_is_heard_with_its_arguments_and_its_output(model: torch.nn.Module, heard: Heard) -> None:
    said: list[Any] = []
    before = lambda module, args, kwargs: said.append((module, args, kwargs))  # noqa: E731
    after = lambda module, args, kwargs, output: said.append(output)  # noqa: E731
    subscription = heard.forward.subscribe(evaluates=before, after=after)
    output = model(X)
    subscription.remove()
    subscription.remove()
    model(X)
    assert [(model, (X,), {}), output] == said


def test_a_call_that_raises_is_closed_too(model: torch.nn.Module, heard: Heard) -> None:
    with pytest.raises(RuntimeError, match="mat1 and mat2"):
        model(torch.ones(2, 9))
    model(X)
    name = type(model).__name__
    assert [(name, False), (name, True)] == heard.take()


def test_copies_are_other_models_and_carry_nothing_of_ours(model: torch.nn.Module, heard: Heard) -> None:
    file = io.BytesIO()
    torch.save(model, file)
    saved = file.getvalue()
    for twin in (
        copy.deepcopy(model),
        copy.copy(model),
        pickle.loads(pickle.dumps(model)),
        torch.load(io.BytesIO(saved), weights_only=False),
    ):
        assert torch.equal(model(X), twin(X))
        assert 1 == len(heard.take())
        assert set(vars(model)) == set(vars(twin))
    assert b"ammeter" not in saved


def test_a_model_that_calls_itself_is_called_once() -> None:
    model = Recursive()
    heard = Heard(model)
    assert 3 == int(model(torch.zeros(())))
    heard.close()
    assert [("Recursive", True)] == heard.take()


def test_a_class_with_a_call_of_its_own_gets_it_back() -> None:
    class Own(torch.nn.Linear):
        def __call__(self, *args: Any) -> Any:
            return super().__call__(*args) * 2

    own, model = vars(Own)["__call__"], Own(4, 4)
    heard = Heard(model)
    model(X)
    heard.close()
    assert [("Own", True)] == heard.take()
    assert vars(Own)["__call__"] is own


@pytest.mark.parametrize("kind", [DataParallel, DistributedDataParallel])
def test_a_model_is_heard_once_in_a_wrapper_of_torch_and_so_is_the_wrapper(kind: Any, tmp_path: Any) -> None:
    store = torch.distributed.FileStore(str(tmp_path / "store"), 1)  # type: ignore[attr-defined]
    torch.distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
    model = Net()
    try:
        inside = Heard(model)
        wrapper = kind(model)
        wrapper(X).sum().backward()
        inside.close()
        outside = Heard(wrapper)
        wrapper(X).sum().backward()
        model(X)
        outside.close()
        del wrapper
    finally:
        torch.distributed.destroy_process_group()
    assert [("Net", True)] == inside.take()
    assert [(kind.__name__, True), ("Net", True)] == outside.take()


def _compiled(what: Any) -> Any:
    return torch.compile(what, backend="eager", fullgraph=True)


@torch._dynamo.config.patch(error_on_recompile=True)  # type: ignore[untyped-decorator]
def test_a_model_compiled_before_or_after_is_heard_and_not_compiled_again(model: torch.nn.Module) -> None:
    torch._dynamo.reset()
    before = _compiled(model)
    heard = Heard(model)
    before(X)
    before(X)
    torch._dynamo.reset()
    after = _compiled(model)
    after(X)
    heard.close()
    after(X)
    assert [("OptimizedModule", True)] * 3 == heard.take()
    heard = Heard(model)
    after(X)
    heard.close()
    assert [("OptimizedModule", True)] == heard.take()
    assert [] == patch.attached()


def test_a_model_compiled_in_place_is_heard(model: torch.nn.Module, heard: Heard) -> None:
    model.compile(backend="eager")
    model(X)
    model(X)
    assert [(type(model).__name__, True)] * 2 == heard.take()


def test_a_compiled_model_that_is_watched_is_heard(model: torch.nn.Module) -> None:
    compiled = _compiled(model)
    heard = Heard(compiled)
    compiled(X)
    heard.close()
    assert [("OptimizedModule", True)] == heard.take()


TRACERS: dict[str, Callable[[torch.nn.Module], Any]] = {
    "a compiled function": lambda model: _compiled(lambda x: model(x)),
    "torch.fx": torch.fx.symbolic_trace,
    "torch.jit.script": torch.jit.script,
    "torch.export": lambda model: torch.export.export(model, (X,)).module(),
    "strict torch.export": lambda model: torch.export.export(model, (X,), strict=True).module(),
}


@pytest.mark.parametrize("tracer", TRACERS)
def test_what_is_traced_is_the_same_and_holds_nothing_of_ours(
    tracer: str, model: torch.nn.Module, heard: Heard
) -> None:
    expected = model(X)
    heard.take()
    traced = TRACERS[tracer](model)
    assert torch.equal(expected, traced(X))
    assert [] == heard.take()


def test_torch_jit_trace_records_the_same_graph(model: torch.nn.Module) -> None:
    def graph() -> str:
        traced: Any = torch.jit.trace(model, X, check_trace=False)  # type: ignore[no-untyped-call]
        return re.sub(r"___torch_mangle_\d+\.", "", str(traced.graph))

    bare = graph()
    heard = Heard(model)
    watched = graph()
    heard.close()
    assert bare == watched
    assert [] == heard.take()


def test_a_class_that_takes_no_attribute_is_left_alone() -> None:
    class Closed(type):
        def __setattr__(cls, name: str, value: Any) -> None:
            raise TypeError("closed")

    class Model(torch.nn.Linear, metaclass=Closed):
        pass

    model = Model(4, 4)
    heard = Heard(model)
    model(X)
    heard.close()
    assert [] == heard.take()


def test_a_model_that_is_gone_is_not_kept() -> None:
    model = Net()
    heard, gone = Heard(model), weakref.ref(model)
    model(X)
    del model
    assert gone() is None
    assert [] == heard.forward.models()
    heard.close()


def test_the_members_of_a_container_that_cannot_be_called_are_models() -> None:
    blocks = torch.nn.ModuleList([Net(), torch.nn.ModuleDict({"inner": torch.nn.Linear(4, 4)})])
    heard = Heard(blocks)
    blocks[1]["inner"](blocks[0](torch.ones(2, 4)))  # type: ignore[index]
    heard.close()
    assert [("Net", True), ("Linear", True)] == heard.calls
    assert ["0.", "1.inner."] == [heard.forward.prefix(model) for model in heard.forward.models()]


def test_the_members_of_one_of_several_models_are_named_after_it() -> None:
    head, blocks = torch.nn.Linear(4, 4), torch.nn.ModuleList([Net()])
    forward = Forward([weakref.ref(head), weakref.ref(blocks)])
    assert ["model0.", "model1.0."] == [forward.prefix(model) for model in (head, blocks[0])]

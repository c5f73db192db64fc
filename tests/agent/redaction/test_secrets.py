"""A watched run that says secrets wherever it can: none of them is in what it writes, sends, or is reported of it."""

from __future__ import annotations

import io
import json
from contextlib import redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch

import ammeter
from ammeter.__main__ import main
from ammeter.wire import codec
from ammeter.wire.frames import Hello
from tests.agent import programs
from tests.agent.collector_double import collector_double
from tests.agent.innocent_samples import INNOCENT
from tests.agent.secret_samples import secrets
from tests.agent.training import stream
from tests.house import tree

TELLS_EVERYTHING = """
from tests.agent.secret_samples import secrets
from tests.agent.innocent_samples import INNOCENT

samples = secrets()
texts = [sample.text for sample in samples]
config = {"all": [sample.value for sample in samples], "innocent": list(INNOCENT)}
tags = {"innocent": "tokens of 4096"}
for sample in samples:
    if isinstance(sample.value, dict):
        config.update(sample.value)
    tags.update(sample.value if isinstance(sample.value, dict) else {f"tag {sample.name}": sample.text})
sys.argv[1:] = ["--hub-token", samples[1].secret, "--max-tokens", "512", *texts]
os.environ["MY_SERVICE_TOKEN"] = "zyxw-" + samples[3].secret
model = torch.nn.Sequential(model)
model.register_parameter("gh" + "p_" + "A1b2" * 9, torch.nn.Parameter(torch.ones(1)))
run = ammeter.watch(model, optimizer, config=config, tags=tags, name="\\n".join(texts[60:]), project=texts[70])
print(run, flush=True)
step()
run.log(**{text: 1.0 for text in texts})
step()
step()
raise RuntimeError(f"{samples[1].secret} and zyxw-{samples[3].secret} were refused\\n" + "\\n".join(texts))
"""


@dataclass
class Leavings:
    """What a run left. sent: the bytes of each batch; written: of each file, by its path."""

    printed: str
    sent: bytes
    hellos: list[Hello]
    written: bytes
    report: str
    as_json: str
    postmortem: str


@pytest.fixture(scope="module")
def left(tmp_path_factory: pytest.TempPathFactory) -> Leavings:
    folder = tmp_path_factory.mktemp("secrets")
    begin = programs.BEGIN.replace("run = ammeter.watch(model, optimizer)\n", "")
    with collector_double() as double:
        program = programs.start(
            TELLS_EVERYTHING, folder, begin=begin, AMMETER_URL=double.url, PYTHONPATH=str(tree.ROOT), AMMETER_FLUSH="30"
        )
        ended = program.end()
        assert 1 == ended.code, ended.err
        batches = [request.batch for request in double.requests]
    (run,) = [folder for folder in ended.folder.glob("*") if folder.is_dir()]
    return Leavings(
        ended.out,
        b"".join(map(codec.encode_batch, batches)),
        [item for batch in batches for item in batch.items if isinstance(item, Hello)],
        b"".join(file.read_bytes() for file in sorted(ended.folder.rglob("*")) if file.is_file()),
        output("report", str(run)),
        output("report", str(run), "--json"),
        output("report", str(run), "--postmortem", "-"),
    )


def output(*words: str) -> str:
    printed = io.StringIO()
    with redirect_stdout(printed):
        main(list(words))
    return printed.getvalue()


@pytest.mark.parametrize("where", ["printed", "sent", "written", "report", "as_json", "postmortem"])
def test_no_secret_is_in_what_a_run_leaves(left: Leavings, where: str) -> None:
    output = getattr(left, where)
    searched = output if isinstance(output, bytes) else "".join(output.split()).encode()
    assert searched
    leaked = [secret.name for secret in secrets() if secret.secret.split()[-1].encode() in searched]
    assert [] == leaked


def test_what_is_innocent_is_sent_and_reported(left: Leavings) -> None:
    wanted = json.loads(json.dumps(INNOCENT))
    assert wanted == left.hellos[0].config["innocent"]
    assert wanted == json.loads(left.as_json)["run"]["config"]["innocent"]
    assert "tokens of 4096" == left.hellos[0].tags["innocent"]


def test_the_command_line_is_told_without_its_secrets(left: Leavings) -> None:
    command = json.loads(left.as_json)["run"]["command"]
    assert command == left.hellos[0].environment["command"]
    assert "script.py --hub-token '(not sent)' --max-tokens 512" in command
    assert "--hub-token '(not sent)' --max-tokens 512" in " ".join(left.report.split())
    assert "--max-tokens 512" in left.postmortem


def test_a_run_says_its_name_its_id_and_where_its_journal_is(tmp_path: Path) -> None:
    import torch

    model = torch.nn.Linear(1, 1)
    run = ammeter.watch(model, torch.optim.SGD(model.parameters(), lr=1), name="first try", dir=tmp_path)
    try:
        assert f"<ammeter.Run 'first try' {run.id}, journal in {tmp_path / run.id}>" == repr(run)
        assert (tmp_path / run.id).is_dir()
    finally:
        run.close()


def test_a_run_that_is_not_watched_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    monkeypatch.setenv("AMMETER_DISABLE", "1")
    model: Any = torch.nn.Linear(1, 1)
    assert "<ammeter.Run: nothing is watched>" == repr(ammeter.watch(model, torch.optim.SGD(model.parameters(), lr=1)))


def test_a_secret_in_a_parameter_group_is_not_told(tmp_path: Path) -> None:
    model = torch.nn.Linear(2, 2)
    groups: Any = [{"params": [model.weight], "api_key": "hunter2hunter2"}, {"params": [model.bias], "kind": "bias"}]
    run = ammeter.watch(model, torch.optim.SGD(groups, lr=0.1), dir=tmp_path)
    run.close()
    _, frames = stream(run.id, tmp_path)
    (hello,) = [frame for frame in frames if isinstance(frame, Hello)]
    assert "hunter2hunter2" not in str(hello)
    assert "not set, bias" == hello.environment["optimizer.kind"]

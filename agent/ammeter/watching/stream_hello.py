"""The first frame of a stream, from the arguments of watch() and the environment."""

from __future__ import annotations

import os
import sys
import time
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ammeter.environment import identity
from ammeter.environment.settings import silenced, variables
from ammeter.preparation.observer import observer
from ammeter.redaction import process_redactor
from ammeter.watching.run_facts import environment
from ammeter.wire.frames import SILENCE, Hello, Schema
from ammeter.wire.metric_directions import BETTER

if TYPE_CHECKING:
    from ammeter.torch_hooks.targets import Watched


def make_hello(watched: Watched, options: Mapping[str, Any]) -> Hello:
    """Returns the first frame of a stream: the run, its rank, and everything known before the first step."""
    process_redactor.learn(variables())
    project = options["project"] or "default"
    run, default_name = identity.run_id(project)
    rank, world_size = identity.rank()
    config = process_redactor.plain(options["config"])  # first: it registers the secrets
    tags = process_redactor.tags(make_tags(options))
    return Hello(
        run=run,
        stream=uuid.uuid4().hex,
        schema=Schema(),
        rank=rank,
        world_size=world_size,
        host=identity.host(),
        pid=os.getpid(),
        started=time.time_ns(),
        name=process_redactor.words(options["name"] or default_name or Path(sys.argv[0] or "python").stem),
        project=process_redactor.words(project),
        config=config,
        tags=tags,
        environment={
            **environment(watched),
            **({"before_watch": "not observed"} if is_unobserved(watched) else {}),
            "command": process_redactor.command(sys.argv),
        },
    )


def is_unobserved(watched: Watched) -> bool:
    """Whether earlier calls are unknown, because an object was built before they were noted."""
    return not all(map(observer.has_built, (*watched.optimizers, *watched.scalers)))


def make_tags(options: Mapping[str, Any]) -> dict[Any, Any]:
    """Returns the tags, with the directions of metrics and the silenced verdicts."""
    silenced_names = silenced_verdicts(options["tags"])
    better = {f"{BETTER}{name}": direction for name, direction in options["better"].items()}
    return {**options["tags"], **better, **({SILENCE: silenced_names} if silenced_names else {})}


def silenced_verdicts(tags: Mapping[Any, Any]) -> str:
    """Returns the silenced verdicts, from the run's tag and AMMETER_SILENCE.

    Raises:
        ValueError: a name is not a verdict.
    """
    texts = [str(tags.get(SILENCE) or ""), silenced()]
    if not any(texts):
        return ""
    from ammeter.verdicts import silence  # the verdicts take 50 ms to import

    return ",".join(silence.names(texts))

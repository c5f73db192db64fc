"""A server with the interface of S3, on this machine, for checkpoints in a store."""

from __future__ import annotations

import logging
import uuid
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch.distributed.checkpoint.state_dict_saver import save

from tests.parts import library


@contextmanager
def serving() -> Iterator[Any]:
    """The address of a new bucket, such as s3://b1f2. Programs started meanwhile reach it, too."""
    servers, filesystem = library("moto.server"), library("s3fs").S3FileSystem
    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    server = servers.ThreadedMotoServer("127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    with pytest.MonkeyPatch.context() as patch:
        for name, value in {
            "AWS_ACCESS_KEY_ID": "test",
            "AWS_SECRET_ACCESS_KEY": "test",
            "AWS_DEFAULT_REGION": "us-east-1",
            "AWS_ENDPOINT_URL": f"http://{host}:{port}",
        }.items():
            patch.setenv(name, value)
        filesystem.clear_instance_cache()
        bucket = f"b{uuid.uuid4().hex[:8]}"
        filesystem().mkdir(bucket)
        try:
            yield f"s3://{bucket}"
        finally:
            filesystem.clear_instance_cache()
            server.stop()


def save_distributed(state: Any, address: Any, **options: Any) -> None:
    """Saves with torch.distributed.checkpoint, without its warning that there is only one process."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        save(state, checkpoint_id=address, **options)


def training_state(scheduler: bool = True) -> dict[str, Any]:
    """The state of a small training after one step, with everything that a resumed run needs."""
    torch.manual_seed(0)
    model = torch.nn.Linear(4, 3)
    optimizer = torch.optim.AdamW(model.parameters())
    scaler = torch.amp.GradScaler("cpu")
    scaler.scale(model(torch.ones(2, 4)).sum()).backward()
    scaler.step(optimizer)
    scaler.update()
    rest = {"scheduler": torch.optim.lr_scheduler.StepLR(optimizer, 1).state_dict()} if scheduler else {}
    return {
        "model": model.state_dict(),
        "optimizer": optimizer.state_dict(),
        "scaler": scaler.state_dict(),
        **rest,
        "rng": torch.get_rng_state(),
        "step": 1,
    }

"""Dtypes as command-line arguments."""

from __future__ import annotations

import argparse

DTYPES = ("float16", "bfloat16", "float32")


def dtype_list(text: str) -> list[str]:
    """Argument type for dtypes separated by commas."""
    names = [name.strip() for name in text.split(",") if name.strip()]
    for name in names:
        if name not in DTYPES:
            raise argparse.ArgumentTypeError(f"{name!r} is no dtype of this command; use {', '.join(DTYPES)}")
    if not names:
        raise argparse.ArgumentTypeError(f"no dtype is given; use {', '.join(DTYPES)}")
    return list(dict.fromkeys(names))

"""The reader for GPUs where there is none: its kernels in Triton's interpreter, as machine code that nobody runs, and
what takes their place."""

from __future__ import annotations

import os
import platform
import re
import sys
from pathlib import Path

import pytest
import torch

from ammeter.tensors import COLUMNS, cuda
from ammeter.tensors.cuda import Device, blocks_in_chunk
from tests import forked
from tests.agent.stats_reference import FLOATS, HOSTILE, assert_same, hostile, reference
from tests.house.tree import ROOT

pytestmark = pytest.mark.long

triton = pytest.mark.skipif(platform.system() != "Linux", reason="Triton is made for Linux")


def in_a_process_of_its_own(folder: Path, *words: str, **environment: str) -> str:
    """What the command prints, with a cache of Triton's that is not the user's. Fails when it fails."""
    known = {**os.environ, "TRITON_CACHE_DIR": str(folder), "OMP_NUM_THREADS": "1", **environment}
    done = forked.run([sys.executable, *words], cwd=ROOT, env=known, capture_output=True, timeout=280)
    assert 0 == done.returncode, done.stdout[-4000:] + done.stderr[-4000:]
    return done.stdout


@triton
def test_the_kernels_give_numpys_numbers_in_tritons_interpreter(tmp_path: Path) -> None:
    words = ("-m", "pytest", "-p", "no:cacheprovider", "tests/agent/kernels_interpreted.py")
    said = in_a_process_of_its_own(tmp_path, *words, TRITON_INTERPRET="1")
    passed = re.search(r"^(\d+) passed in", said, re.MULTILINE)
    assert passed, said
    assert int(passed[1]) > len(HOSTILE) * len(cuda.KINDS)


COMPILED = """
import sys
import triton
import triton.language as tl
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from ammeter.tensors import triton as ours

tables = ["*i64", "*i64", "*i32", "*i32", "*fp64", "*i64"]
names = ours.read_chunks.arg_names
types = dict(zip(names, [*tables, "i32", "i32", *["constexpr"] * 4]))
for kind, together in ((tl.float32, 4), (tl.int16, 8), (tl.float16, 8)):
    for aligned in (True, False):
        values = dict(zip(names[8:], (kind, together if aligned else 1, aligned, True)))
        given = {(names.index(name),): value for name, value in values.items()}
        whole = {(at,): [["tt.divisibility", 16]] for at in range(6)}
        source = ASTSource(ours.read_chunks, types, given, whole)
        options = {"num_warps": ours.WARPS, "enable_fp_fusion": True}
        made = triton.compile(source, target=GPUTarget("cuda", int(sys.argv[1]), 32), options=options)
        print(kind, aligned, made.asm["ptx"].count("ld.global.v4"), made.asm["ptx"].count(".local "))
types = {"partials": "*fp64", "firsts": "*i32", "lasts": "*i32", "rows": "*fp64", "slots": "constexpr"}
triton.compile(ASTSource(ours.add_chunks, types, {(4,): ours.SLOTS}), target=GPUTarget("cuda", int(sys.argv[1]), 32))
"""


@triton
def test_the_kernels_compile_and_load_16_bytes_at_once_where_tensors_are_aligned(tmp_path: Path) -> None:
    h100 = "90"
    lines = [line.split() for line in in_a_process_of_its_own(tmp_path, "-c", COMPILED, h100).splitlines()]
    assert ["fp32", "fp32", "int16", "int16", "fp16", "fp16"] == [line[0] for line in lines]
    assert [True, False] * 3 == [int(line[2]) > 0 for line in lines]
    assert {"0"} == {line[3] for line in lines}


def test_where_kernels_cannot_run_torch_gives_the_same_numbers_and_the_reason_is_told() -> None:
    tensors = [tensor for dtype in FLOATS for tensor in hostile(dtype)]
    reader = Device()
    rows, spectrum = reader.read_with_spectrum(tensors)
    assert_same(cuda.rows(tensors).numpy(), rows.numpy())
    assert not spectrum.any()
    assert reader.slow
    assert torch.equal(rows[:, 1:], reader.read(tensors)[:, 1:])


def test_rows_of_torchs_operators_are_numpys_where_squares_stay_in_float64() -> None:
    tensors = [tensor for dtype in FLOATS[:3] for tensor in hostile(dtype)]
    assert_same(reference(tensors), cuda.rows(tensors).numpy())
    assert (0, COLUMNS) == cuda.rows([]).shape


@pytest.mark.parametrize("elements", [0, 1, 10**6, 268_000_000, 7 * 10**9, 10**12])
def test_chunks_are_few_enough_and_counts_fit_their_bits(elements: int) -> None:
    blocks = blocks_in_chunk(elements, 4096, 2**11)
    assert cuda.MIN_BLOCKS <= blocks <= 2**11
    assert elements <= blocks * 4096 * cuda.MAX_CHUNKS
    assert cuda.MAX_CHUNKS * COLUMNS * 8 < 16 * 2**20

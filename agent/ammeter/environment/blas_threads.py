"""The threads of numpy's linear algebra, which no process of Ammeter needs."""

from __future__ import annotations

ONE_THREAD = dict.fromkeys(("OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "OMP_NUM_THREADS"), "1")
"""Environment variables of a process beside a training, set before it imports numpy. By default numpy then starts a
thread on each core, and these spin for a moment on the cores of the training."""

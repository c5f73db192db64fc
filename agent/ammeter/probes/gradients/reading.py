"""Reads the gradients of one optimizer, on the host or on their devices."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Iterator

import msgspec
import numpy as np
import numpy.typing as npt
import torch

from ammeter.tensors import NORM, async_copy, cpu
from ammeter.tensors.cuda import Device
from ammeter.tensors.dispatch import Host
from ammeter.tensors.exponents import spectrum
from ammeter.tensors.hidden_reads import has_numbers

READINGS_PER_SPECTRUM = 8
"""One spectrum is read per this many full readings."""

HOST = "cpu"
"""Type of the devices whose gradients are read on the host."""

Indices = npt.NDArray[np.int64]


class GradientReading(msgspec.Struct, frozen=True):
    """A reading of scaled gradients on one device; transfers may be pending.

    Attributes:
        indices: the tensors in watched.tensors.
        values: the norms, or after a full reading the statistics columns, one gradient after the other.
        scale: the scale that the gradients are multiplied by.
        is_full: whether `values` has all statistics.
        stopwatch: device time of the reading.
        spectrum: elements per exponent, if they were counted.
        counted: (tensor indices, statistics columns) of the non-finite gradients, if only norms were read.
        has_nonfinite: whether the host already knows that a gradient is not finite.
    """

    indices: Indices
    values: async_copy.Transfer
    scale: async_copy.Transfer
    is_full: bool
    stopwatch: async_copy.Stopwatch | None = None
    spectrum: async_copy.Transfer | None = None
    counted: tuple[Indices, npt.NDArray[np.float64]] | None = None
    has_nonfinite: bool = False

    def transfers(self) -> Iterator[async_copy.Transfer]:
        yield self.values
        if self.spectrum:
            yield self.spectrum
        yield self.scale

    def nonfinite(self) -> Indices:
        """The indices of the gradients whose norm is not finite."""
        norms = self.values.array().reshape(len(self.indices), -1)[:, NORM]
        return self.indices[~np.isfinite(norms)]


class GradientReader:
    """Reads gradients with one reader per optimizer and device. It keeps no tensor of the program.

    Args:
        may_count: whether the elements of non-finite gradients may be counted after a reading of norms.
        takes_spectrum: whether a spectrum is due besides those of full readings; the argument is whether a gradient of
            the reading is known to be non-finite.
    """

    def __init__(self, may_count: Callable[[], bool], takes_spectrum: Callable[[bool], bool]) -> None:
        self._may_count = may_count
        self._takes_spectrum = takes_spectrum
        self._full_readings = 0
        self._hosts: weakref.WeakKeyDictionary[torch.optim.Optimizer, Host] = weakref.WeakKeyDictionary()
        self._devices: weakref.WeakKeyDictionary[torch.optim.Optimizer, dict[torch.device, Device]]
        self._devices = weakref.WeakKeyDictionary()

    def prepare(self, optimizer: torch.optim.Optimizer, parameters: Iterable[torch.Tensor]) -> None:
        """Compiles the kernels at watch(), when a delay of about a second is acceptable.

        The weights serve as input, because their gradients will have the same shapes, dtypes and devices.
        """
        weights = [parameter for parameter in parameters if parameter.device.type == "cuda"]
        for device in {weight.device for weight in weights}:
            same_device = [weight.detach() for weight in weights if weight.device == device and weight.requires_grad]
            if readable := [weight for weight in same_device if has_numbers(weight)]:
                self._device(optimizer, device).read(readable)

    def host(self, optimizer: torch.optim.Optimizer) -> Host:
        return self._hosts.setdefault(optimizer, Host())

    def read(
        self,
        optimizer: torch.optim.Optimizer,
        indices: Indices,
        grads: list[torch.Tensor],
        scale: async_copy.Transfer,
        full: bool,
    ) -> Iterator[GradientReading]:
        """Yields one reading per device.

        Args:
            indices: indices of the gradients' tensors.
            scale: the scale that the gradients are multiplied by.
            full: read all statistics, not only norms.
        """
        devices = [grad.device for grad in grads]
        for device in set(devices):
            places = [place for place, location in enumerate(devices) if location == device]
            if len(places) == len(devices):
                chosen_indices, chosen = indices, grads
            else:
                chosen_indices, chosen = indices[places], [grads[place] for place in places]
            if device.type == HOST:
                yield self._read_on_host(self.host(optimizer), chosen_indices, chosen, scale, full)
            else:
                yield self._read_on_device(self._device(optimizer, device), chosen_indices, chosen, scale, full)

    def _read_on_host(
        self, host: Host, indices: Indices, grads: list[torch.Tensor], scale: async_copy.Transfer, full: bool
    ) -> GradientReading:
        """Reads norms or all statistics on the CPU, and counts non-finite elements."""
        values = host.read(grads) if full else host.norms(grads)
        nonfinite = np.flatnonzero(~np.isfinite(values[:, NORM] if full else values))
        counted = None
        if nonfinite.size and not full and self._may_count():
            counted = indices[nonfinite], cpu.read([grads[place] for place in nonfinite])
        is_due = self._spectrum_is_due(full, bool(nonfinite.size))
        counts = async_copy.Arrived(spectrum(grads).astype(np.float64)) if is_due else None
        arrived = async_copy.Arrived(values.reshape(-1))
        return GradientReading(indices, arrived, scale, full, None, counts, counted, bool(nonfinite.size))

    def _read_on_device(
        self, device: Device, indices: Indices, grads: list[torch.Tensor], scale: async_copy.Transfer, full: bool
    ) -> GradientReading:
        """Reads on a device. Ammeter's kernels read all statistics in one pass.

        Without these kernels, statistics other than norms are read as rarely as on the host.
        """
        stopwatch = async_copy.Stopwatch(grads[0].device)
        full = full or not device.slow
        if self._spectrum_is_due(full, False) and full:
            rows, counts = device.read_with_spectrum(grads)
            transfers = async_copy.of(rows), async_copy.of(counts.double())
            return GradientReading(indices, transfers[0], scale, full, stopwatch.end(), transfers[1])
        values = async_copy.of(device.read(grads) if full else cpu.norms(grads))
        return GradientReading(indices, values, scale, full, stopwatch.end())

    def _spectrum_is_due(self, full: bool, is_nonfinite: bool) -> bool:
        self._full_readings += full
        is_next = full and self._full_readings % READINGS_PER_SPECTRUM == 1
        return self._takes_spectrum(is_nonfinite) or is_next

    def _device(self, optimizer: torch.optim.Optimizer, device: torch.device) -> Device:
        return self._devices.setdefault(optimizer, {}).setdefault(device, Device())

"""A stand-in for NVIDIA's libnvidia-ml.so.1, which no machine without a GPU has: compiled here, loaded by real pynvml.

What it answers is written to a file, and can be changed while it is in use.
"""

from __future__ import annotations

import subprocess
from pathlib import Path

from tests import parts

UUIDS = ("GPU-604ac76c-d9cf-fef3-62e9-d92044ab6e52", "GPU-11111111-d9cf-fef3-62e9-d92044ab6e52")
MODEL = "NVIDIA H200"
HEALTHY = {"utilization": "75", "memory": "68719476736", "power": "512000", "temperature": "61"}

SOURCE = r"""
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef struct { unsigned long long total, free, used; } memory_t;
typedef struct { unsigned int gpu, memory; } rates_t;
enum { SUCCESS = 0, NOT_SUPPORTED = 3, NOT_FOUND = 6, GPU_IS_LOST = 15 };

static int answer(const char *name, unsigned long long *value) {
    char key[64], said[64];
    FILE *file = fopen(STATE, "r");
    if (!file) return GPU_IS_LOST;
    while (fscanf(file, "%63s %63s", key, said) == 2) {
        if (strcmp(key, name)) continue;
        fclose(file);
        while (!strcmp(said, "hang")) pause();
        if (!strcmp(said, "unsupported")) return NOT_SUPPORTED;
        if (!strcmp(said, "lost")) return GPU_IS_LOST;
        *value = strtoull(said, NULL, 10);
        return SUCCESS;
    }
    fclose(file);
    return NOT_SUPPORTED;
}

static int narrow(const char *name, unsigned int *value) {
    unsigned long long wide = 0;
    int code = answer(name, &wide);
    *value = (unsigned int)wide;
    return code;
}

int nvmlInitWithFlags(unsigned int flags) { return SUCCESS; }
const char *nvmlErrorString(int code) { return code == NOT_SUPPORTED ? "Not Supported" : "GPU is lost"; }
int nvmlDeviceGetHandleByUUID(const char *uuid, void **device) {
    static const char *known[] = {UUID_0, UUID_1};
    for (long index = 0; index < 2; index++)
        if (!strcmp(uuid, known[index])) { *device = (void *)(index + 1); return SUCCESS; }
    return NOT_FOUND;
}
int nvmlDeviceGetIndex(void *device, unsigned int *index) { *index = (unsigned int)((long)device - 1); return SUCCESS; }
int nvmlDeviceGetName(void *device, char *name, unsigned int size) { snprintf(name, size, MODEL); return SUCCESS; }
int nvmlDeviceGetUtilizationRates(void *device, rates_t *rates) { return narrow("utilization", &rates->gpu); }
int nvmlDeviceGetMemoryInfo(void *device, memory_t *memory) {
    memory->total = 150754820096ULL;
    return answer("memory", &memory->used);
}
int nvmlDeviceGetPowerUsage(void *device, unsigned int *milliwatts) { return narrow("power", milliwatts); }
int nvmlDeviceGetTemperature(void *device, int sensor, unsigned int *degrees) {
    return narrow("temperature", degrees);
}
"""


class FakeNvml:
    """folder: what LD_LIBRARY_PATH has to name. set() changes what it answers: a number, unsupported, lost or hang."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._state = folder / "state"
        self._answers = dict(HEALTHY)
        self.set()
        source = folder / "nvml.c"
        source.write_text(SOURCE)
        words = {"STATE": str(self._state), "MODEL": MODEL, "UUID_0": UUIDS[0], "UUID_1": UUIDS[1]}
        defines = [f'-D{name}="{value}"' for name, value in words.items()]
        command = [parts.need("cc"), "-shared", "-fPIC", *defines, "-o", str(folder / "libnvidia-ml.so.1"), str(source)]
        subprocess.run(command, check=True, timeout=60)

    def set(self, **answers: str) -> None:
        self._answers |= answers
        draft = self._state.with_suffix(".new")
        draft.write_text("".join(f"{name} {value}\n" for name, value in self._answers.items()))
        draft.replace(self._state)

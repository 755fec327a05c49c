"""Power of the GPUs while a load runs, by NVML."""

from __future__ import annotations

import threading
import time

from runners.discovery import nvml

SAMPLE_S = 0.5


class PowerSampler:
    """Samples the summed power of some GPUs in a thread. Without GPUs or driver it has no samples, and says None."""

    def __init__(self, gpu_indexes: tuple[int, ...]) -> None:
        self._indexes = gpu_indexes
        self._samples: list[tuple[float, float]] = []
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="power", daemon=True)

    def __enter__(self) -> PowerSampler:
        if self._indexes:
            self._thread.start()
        return self

    def __exit__(self, *_exception: object) -> None:
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join(timeout=5.0)

    def _run(self) -> None:
        with nvml() as lib:
            if lib is None:
                return
            try:
                handles = [lib.nvmlDeviceGetHandleByIndex(index) for index in self._indexes]
                while not self._stop.wait(SAMPLE_S):
                    watts = sum(lib.nvmlDeviceGetPowerUsage(handle) for handle in handles) / 1000
                    self._samples.append((time.time(), watts))
            except lib.NVMLError:
                self._samples.clear()

    def mean_w(self, window: tuple[float, float] | None) -> float | None:
        """Mean watts of all the GPUs together between two Unix times; None without samples there."""
        if window is None:
            return None
        inside = [watts for at, watts in self._samples if window[0] <= at <= window[1]]
        return sum(inside) / len(inside) if inside else None

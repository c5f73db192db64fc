"""The collector as a process: logging, CPU affinity, metrics of its own."""

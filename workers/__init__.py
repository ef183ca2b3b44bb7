"""One device: loads a model, keeps its KV blocks, executes step plans. No Ray, no network."""

import os

# OpenMP reads this when torch loads it, so it must stand before any module here imports torch. By
# default its idle threads spin for some milliseconds after each loop, against whoever else wants
# the cores, our own threads among them; this is some 50 microseconds, then they sleep.
if "OMP_WAIT_POLICY" not in os.environ:
    os.environ.setdefault("GOMP_SPINCOUNT", "2000")

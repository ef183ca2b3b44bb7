"""Gives memory back that nothing holds any more: to the system, and to others on the device."""

import ctypes
import gc
import sys

__all__ = ["give_back_memory"]


def give_back_memory() -> None:
    """Collect what only cycles hold, and return what allocators keep for later."""
    gc.collect()
    torch = sys.modules.get("torch")  # who has not loaded it has nothing there
    if torch is not None and torch.cuda.is_initialized():
        torch.cuda.empty_cache()
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # of glibc; others have none
    if trim is not None:
        trim(0)

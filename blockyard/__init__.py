"""Blockyard: serves LLMs on a Ray cluster with KV memory given out in exactly counted blocks.

The code lives in the top-level folders `scheduler`, `workers`, `cuda`, `cluster` and `protos`; the
five links beside this file give them their import names. This module stays lazy: importing it
loads none of them.
"""

__all__ = ["__version__"]

__version__ = "0.1.0"

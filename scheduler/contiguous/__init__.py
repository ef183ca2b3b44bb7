"""Servers that give each request one contiguous piece of memory, as models."""

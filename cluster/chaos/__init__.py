"""Faults on demand, for clusters that were started with them allowed."""

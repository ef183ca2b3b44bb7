"""Processes, wires and people: engine, worker group, central scheduler, ingress, command line."""

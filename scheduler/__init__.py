"""Decisions about KV blocks and requests. Pure: standard library and numpy, no device, no clock."""

"""Groups and devices that take simulated time, under the real scheduler."""

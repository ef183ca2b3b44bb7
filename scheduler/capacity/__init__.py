"""Planning of memory: sums over shapes, lengths and measurements."""

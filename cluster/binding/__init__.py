"""Which group a request is given, and who waits for one: both ends."""

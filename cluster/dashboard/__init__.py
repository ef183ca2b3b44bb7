"""The yard page: where every block is, as it happens, in a browser."""

"""One request's way from a client's message to a client's text."""

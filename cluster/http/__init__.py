"""The OpenAI-shaped HTTP interface: JSON in and out of the one request path."""

"""Whether models are awake, and with which weights: what is wanted, and who sees to it."""

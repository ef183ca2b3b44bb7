"""One device: loads a model, keeps its KV blocks, executes step plans. No Ray, no network."""

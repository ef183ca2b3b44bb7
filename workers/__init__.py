"""One device: loads a model, keeps its KV blocks, executes step plans. Knows no Ray and no network."""

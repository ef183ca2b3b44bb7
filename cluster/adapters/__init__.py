"""LoRA adapters over a base model: which are served, and who loads and unloads them."""

"""Waste at three levels: KV tokens, device memory, fleet GPUs."""

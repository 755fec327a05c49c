"""Engine adapters: what one engine is started with, what it says while starting, and why it failed."""

"""Where engines run: the local host for now."""

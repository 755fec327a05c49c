"""Records as JSON."""

"""Scenarios and the plans computed for them."""

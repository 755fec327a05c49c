"""Base models, users and roles, tokens, change log."""

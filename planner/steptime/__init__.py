"""How long one engine iteration takes."""

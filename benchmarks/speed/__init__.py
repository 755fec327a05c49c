"""How long the application takes."""

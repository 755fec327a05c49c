"""Node side: starts, probes and stops engines. No ORM, no database credentials."""

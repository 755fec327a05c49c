"""What each engine does, by version: defaults, memory rules, scheduler policy, support."""

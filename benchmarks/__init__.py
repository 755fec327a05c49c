"""How accurate the planner is and how fast the application is: ``python -m benchmarks``."""

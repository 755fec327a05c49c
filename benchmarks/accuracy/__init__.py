"""How far the planner is from what was measured."""

"""Where every replica runs: candidates, the integer programme, greedy plans and the independent checker."""

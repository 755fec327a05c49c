"""Long acts: the Job row is the truth, the message only a nudge."""

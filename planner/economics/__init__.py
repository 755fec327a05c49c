"""What a GPU-hour and a million tokens cost."""

"""Arrivals, the continuous-batching simulator, percentile metrics and the largest load within the SLO."""

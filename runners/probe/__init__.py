"""Asking a running engine: is it ready, what do its counters say, what does a load measure."""

"""The sample fleet and workloads of ``make demo``."""

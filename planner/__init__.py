"""Tonnage's modelling library: memory, step time, serving, cost and placement.

Pure functions over frozen dataclasses: no Django, no Celery, no network, no clock, no global random state.
"""

MODEL_VERSION = "0.1"
"""Version of the models' arithmetic; stored with every estimate so that old answers can be told apart."""

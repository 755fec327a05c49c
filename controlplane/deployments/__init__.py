"""Engines that run, their probes, and how true the predictions were."""

"""Models: from a Hugging Face config.json to layers, weights and quantisation."""

from planner.models.loading import load_config_file, parse_config_text
from planner.models.parser import parse

__all__ = ["load_config_file", "parse", "parse_config_text"]

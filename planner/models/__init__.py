"""From a Hugging Face config.json to a ModelSpec."""

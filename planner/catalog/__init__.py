"""GPUs, node types, prices and models that ship with Tonnage, each fact with its source."""

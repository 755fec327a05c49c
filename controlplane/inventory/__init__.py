"""Sites, nodes, GPUs and prices."""

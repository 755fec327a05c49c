"""What has to be served: models, traces, loads and objectives."""

"""GitHub webhook deliveries, each stored once."""

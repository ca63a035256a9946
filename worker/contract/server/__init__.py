"""The connection to Redis: one server, a cluster, or what Sentinels name; its scripts and its fitness."""

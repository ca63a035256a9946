"""Celery's transports, hardened: no message and no server in trouble can end a worker."""

"""The pools that Celery runs tasks in."""

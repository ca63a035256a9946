"""Wake-ups: Celery messages that carry an id and have no authority, and how they are sent."""

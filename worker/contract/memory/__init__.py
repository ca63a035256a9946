"""Conversations: what they remember, their past, and how they are moved."""

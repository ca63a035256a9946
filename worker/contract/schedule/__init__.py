"""Schedules: templates that cron posts again and again."""

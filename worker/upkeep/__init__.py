"""What keeps work going: leases renewed, what is overdue found, schedules fired."""

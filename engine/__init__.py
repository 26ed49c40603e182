"""Makes tables fresh: change capture, the mirror, the two executors, refresh, scheduler."""

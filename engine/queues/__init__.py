"""What queues need beside their own functions: ticks and maintenance."""

"""Metrics for Prometheus, and answers for load balancers: `headwater serve --metrics`."""

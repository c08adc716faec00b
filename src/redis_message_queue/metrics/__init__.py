"""Adapters for monitoring systems: `prometheus` for metrics, `opentelemetry` for traces and metrics."""

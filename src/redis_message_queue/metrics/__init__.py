"""What monitoring systems are told of queues: `prometheus` counts and measures, `opentelemetry` traces and measures."""

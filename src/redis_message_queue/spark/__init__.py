"""The queue in Spark."""

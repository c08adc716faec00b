"""rmq spark: the jobs of the data pipeline, and the consumer groups of streaming queries."""

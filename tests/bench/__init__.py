"""Tests of the benchmarks: that they measure what they say, with tiny numbers."""

"""Measures the pipeline: `python -m duemq.bench.spark`."""

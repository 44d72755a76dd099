"""The figures of the pipeline: `python -m duemq.bench.spark`."""

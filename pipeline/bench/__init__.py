"""The figures of the pipeline: `python -m duemq.pipeline.bench`."""

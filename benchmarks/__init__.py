"""Measurements of recipegen itself and of its numbers; each module runs as `python -m benchmarks.NAME`."""

"""One foreign format a file, written and read there."""

"""Candidates -> rules -> ranking -> Decision with reasons."""

from recipegen.decide.decision import decide
from recipegen.decide.pins import field_types, read_pins, resolve_path

__all__ = ["decide", "field_types", "read_pins", "resolve_path"]

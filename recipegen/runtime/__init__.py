"""On the training box: what the machine is. The parsers are pure functions of captured text; the collector is thin."""

from __future__ import annotations

from recipegen.runtime.collect import Box, probe
from recipegen.runtime.profile import profile_yaml
from recipegen.runtime.table import table

__all__ = ["Box", "probe", "profile_yaml", "table"]

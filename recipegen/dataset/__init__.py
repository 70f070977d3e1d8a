"""Recognise, count and measure a data file."""

from recipegen.dataset.chat_template import EndOfTurn, end_of_turn
from recipegen.dataset.entry import with_path
from recipegen.dataset.lengths import LossReport, loss_report, propose_sequence_len, summarise, together
from recipegen.dataset.measure import measure
from recipegen.dataset.packing import packing_efficiency, steps_per_epoch, validation_rows
from recipegen.dataset.template_names import chat_templates, token_exists

__all__ = [
    "EndOfTurn",
    "LossReport",
    "chat_templates",
    "end_of_turn",
    "loss_report",
    "measure",
    "packing_efficiency",
    "propose_sequence_len",
    "steps_per_epoch",
    "summarise",
    "together",
    "token_exists",
    "validation_rows",
    "with_path",
]

"""What a change does: two sides in, one semantic difference out. Printers stand apart."""

from recipegen.review.difference import (
    Change,
    Compatibility,
    Effect,
    Experiment,
    RecipeDifference,
    Review,
    Statement,
    Status,
    Weight,
)

__all__ = [
    "Change",
    "Compatibility",
    "Effect",
    "Experiment",
    "RecipeDifference",
    "Review",
    "Statement",
    "Status",
    "Weight",
]

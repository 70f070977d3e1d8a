"""Ask every rule."""

from __future__ import annotations

from recipegen.catalog.stack import Stack
from recipegen.rules.registry import Context, all_rules
from recipegen.spec import Cluster, Estimate, Finding, ModelSpec, Recipe


def evaluate_recipe(recipe: Recipe, model: ModelSpec, cluster: Cluster, stack: Stack) -> tuple[Finding, ...]:
    """The findings that need no estimate, in the order of the rule ids."""
    context = Context(recipe, model, cluster, stack)
    return tuple(f for rule in all_rules() if not rule.needs_estimate for f in rule.check(context))


def evaluate(
    recipe: Recipe, model: ModelSpec, cluster: Cluster, estimate: Estimate, stack: Stack
) -> tuple[Finding, ...]:
    """Every finding about a priced recipe, in the order of the rule ids."""
    context = Context(recipe, model, cluster, stack, estimate)
    return tuple(f for rule in all_rules() for f in rule.check(context))

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
    recipe: Recipe, model: ModelSpec, cluster: Cluster, estimate: Estimate, stack: Stack, *, generated: bool = True
) -> tuple[Finding, ...]:
    """Every finding about a priced recipe, in the order of the rule ids. `generated` False: it was read from files
    that somebody else wrote, so what recipegen merely does not write itself is no finding."""
    context = Context(recipe, model, cluster, stack, estimate, generated)
    asked = [rule for rule in all_rules() if generated or not rule.generated_only]
    return tuple(f for rule in asked for f in rule.check(context))

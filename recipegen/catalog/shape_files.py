"""Shapes of models that are known by name but not offered: the files of `shapes/`.

Each is in the catalogue's format (`config:`), or has `shape:` with ModelSpec fields for an architecture that the
catalogue does not read. They serve what names a model already: `recipegen check` and the published measurements.
"""

from __future__ import annotations

from pathlib import Path

from recipegen.catalog import model as catalogue
from recipegen.catalog.reading import load_yaml
from recipegen.spec import LinearGroup, ModelSpec, MoeSpec, QkNorm

SHAPES_FOLDER = Path(__file__).parent / "shapes"


def read(path: Path) -> ModelSpec:
    """One model file: the catalogue's format (`config:`), or `shape:` with the fields of ModelSpec."""
    facts = load_yaml(path)
    if "shape" not in facts:
        return catalogue.read(path)
    shape = dict(facts["shape"])
    if "moe" in shape:
        shape["moe"] = MoeSpec(**shape["moe"])
    if "qk_norm" in shape:
        shape["qk_norm"] = QkNorm(shape["qk_norm"])
    shape["extra_linear"] = tuple(LinearGroup(**group) for group in shape.get("extra_linear", ()))
    source = next(source["url"] for source in facts["sources"] if source["what"] == "shape")
    return ModelSpec(
        id=facts["id"],
        num_parameters=facts["num_parameters"],
        unconfirmed=facts.get("unconfirmed", False),
        trust_remote_code=facts.get("trust_remote_code", False),
        source=source,
        **shape,
    )

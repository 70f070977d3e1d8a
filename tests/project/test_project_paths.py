"""Local paths of a recipe, as launch.sh will see them from inside the project."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from recipegen.formats import recipe_yaml
from recipegen.project import create, render
from recipegen.project.paths import check_name, localize, seen_from
from recipegen.spec import Finding, RecipegenError, Severity
from tests.recipes_for_tests import PINS, dataset, decision, recipe


def test_a_path_outside_becomes_absolute_and_one_inside_stays_relative(tmp_path: Path) -> None:
    folder = tmp_path / "demo"
    assert seen_from(folder, "data.jsonl", tmp_path) == str(tmp_path / "data.jsonl")
    assert seen_from(folder, "demo/data.jsonl", tmp_path) == "./data.jsonl"
    assert seen_from(folder, str(folder / "a b" / "x.jsonl"), tmp_path) == "./a b/x.jsonl"
    assert seen_from(folder, "/data/x.jsonl", tmp_path) == "/data/x.jsonl"
    assert seen_from(folder, "demo/../x.jsonl", tmp_path) == str(tmp_path / "x.jsonl")
    assert seen_from(Path("demo"), "data.jsonl", tmp_path) == str(tmp_path / "data.jsonl")


def test_a_home_is_expanded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    assert seen_from(tmp_path / "demo", "~/x.jsonl", tmp_path) == str(tmp_path / "x.jsonl")


def test_data_model_and_profile_are_found_from_the_project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "tiny").mkdir()
    (tmp_path / "box.yaml").write_text("")
    (tmp_path / "data.jsonl").write_text("{}")
    answer = decision(recipe(model="tiny"))
    answer = dataclasses.replace(answer, request=dataclasses.replace(answer.request, model="tiny", hardware="box.yaml"))
    create(answer, "demo", pins=PINS)
    written = yaml.safe_load((tmp_path / "demo" / "axolotl.yaml").read_bytes())
    assert written["base_model"] == str(tmp_path / "tiny")
    assert written["datasets"][0]["path"] == str(tmp_path / "data.jsonl")
    assert f"-- {tmp_path}/data.jsonl" in (tmp_path / "demo" / "launch.sh").read_text()
    request = recipe_yaml.read((tmp_path / "demo" / "recipe.yaml").read_bytes())
    assert request.model == str(tmp_path / "tiny")
    assert request.hardware == str(tmp_path / "box.yaml")
    assert request.dataset == (str(tmp_path / "data.jsonl"),)


def test_what_is_written_does_not_depend_on_where_it_was_decided(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "tiny").mkdir()
    for name in ("box.yaml", "data.jsonl"):
        (tmp_path / name).write_text("")
    written = []
    for here, prefix in ((tmp_path, ""), (tmp_path / "tiny", "../")):
        monkeypatch.chdir(here)
        data = f"{prefix}data.jsonl"
        model, box = f"{prefix}tiny", f"{prefix}box.yaml"
        answer = decision(recipe(model=model, hardware=box, datasets=(dataset(data),)))
        long = Finding("RG501", Severity.WARNING, "data", f"{data}: 10 rows are longer")
        answer = dataclasses.replace(
            answer,
            model=dataclasses.replace(answer.model, id=model),
            request=dataclasses.replace(answer.request, model=model, hardware=box, dataset=(data,)),
            findings=(long,),
            warnings=(f"RG501 {data}: 10 rows are longer", f"{data}: ten", "about data.jsonl: ten"),
        )
        there = localize(answer, tmp_path / "demo")
        assert there.findings[0].reason == f"{tmp_path}/data.jsonl: 10 rows are longer"
        assert there.warnings[:2] == (f"RG501 {tmp_path}/data.jsonl: 10 rows are longer", f"{tmp_path}/data.jsonl: ten")
        assert there.warnings[2] == "about data.jsonl: ten"  # no place at its beginning
        written.append(render(there, pins=PINS))
    assert str(tmp_path / "box.yaml").encode() in written[0]["recipe.lock"]
    assert written[0] == written[1]


def test_hub_names_and_urls_stay(tmp_path: Path) -> None:
    specs = (dataset("tatsu-lab/alpaca", local=False), dataset("s3://bucket/x.jsonl"))
    answer = decision(recipe(datasets=specs))
    assert localize(answer, tmp_path / "demo", tmp_path) == answer


def test_data_files_move_with_their_path(tmp_path: Path) -> None:
    entry = (("path", "json"), ("data_files", ["d.jsonl", "other"]), ("note", "d.jsonl"))
    spec = dataset("d.jsonl", entry=entry)
    moved = localize(decision(recipe(datasets=(spec,))), tmp_path / "demo", tmp_path).recipe.datasets[0]
    assert dict(moved.entry) == {
        "path": "json",
        "data_files": [str(tmp_path / "d.jsonl"), "other"],
        "note": "d.jsonl",
    }
    assert moved.path == str(tmp_path / "d.jsonl")


@given(st.text(max_size=120))
def test_a_name_is_refused_or_is_one_plain_component(name: str) -> None:
    try:
        check_name(name)
    except RecipegenError as error:
        assert "\n" not in str(error)
        return
    assert name.isascii()
    assert not set(name) & set("/\\ \n\t'\"$`;|&<>*?[]{}()~#!\0")
    assert name[0] not in "-."
    assert len(name) <= 100

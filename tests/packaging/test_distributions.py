"""Templates and gallery come with the wheel and the sdist; a checkout uses its own."""

import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TEMPLATES = {
    p.relative_to(ROOT / "templates").as_posix()
    for p in (ROOT / "templates").rglob("*")
    if p.is_file() and p.suffix != ".pyc" and ".ruff_cache" not in p.parts
}


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("dist")
    command = [
        sys.executable,
        "-m",
        "build",
        "--no-isolation",
        "--sdist",
        "--wheel",
        "--outdir",
        str(folder),
        str(ROOT),
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


def test_the_wheel_holds_every_template_and_fact(built: Path) -> None:
    names = set(zipfile.ZipFile(next(built.glob("*.whl"))).namelist())
    assert TEMPLATES
    assert {f"recipegen/_data/templates/{t}" for t in TEMPLATES} <= names
    assert "recipegen/_data/recipes/README.md" in names
    facts = {
        p.relative_to(ROOT).as_posix()
        for p in (ROOT / "recipegen/catalog").rglob("*")
        if p.suffix in (".yaml", ".json")
    }
    assert facts <= names
    assert not any("tests/" in n for n in names)


def test_the_sdist_can_be_built_again(built: Path, tmp_path: Path) -> None:
    with tarfile.open(next(built.glob("*.tar.gz"))) as archive:
        archive.extractall(tmp_path, filter="data")
    source = next(tmp_path.iterdir())
    command = [
        sys.executable,
        "-m",
        "build",
        "--no-isolation",
        "--wheel",
        "--outdir",
        str(tmp_path / "again"),
        str(source),
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    again = zipfile.ZipFile(next((tmp_path / "again").glob("*.whl"))).namelist()
    assert sorted(again) == sorted(zipfile.ZipFile(next(built.glob("*.whl"))).namelist())


def _installed(folder: Path, code: str) -> str:
    """Run code against the installed package alone: not in the checkout, nothing of it on the path."""
    paths = [str(folder), *(p for p in sys.path if "site-packages" in p)]
    program = f"import sys\nsys.path[:0] = {paths!r}\n{code}"
    done = subprocess.run(
        [sys.executable, "-I", "-c", program], capture_output=True, text=True, cwd=folder, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_an_installed_wheel_plans_and_finds_its_templates(built: Path, tmp_path: Path) -> None:
    with zipfile.ZipFile(next(built.glob("*.whl"))) as wheel:
        wheel.extractall(tmp_path)
    where = _installed(tmp_path, "from recipegen.catalog import data_folder\nprint(data_folder('templates'))").strip()
    assert Path(where) == tmp_path / "recipegen/_data/templates"
    out = _installed(
        tmp_path,
        "from recipegen.cli.main import run\n"
        "print(run(['plan', '--model', 'Llama-3.1-8B', '--hardware', 'kentino-8x-rtx-5090']))",
    )
    assert out.startswith("FITS")
    assert out.splitlines()[-1] == "0"


def test_a_checkout_uses_its_own_templates() -> None:
    from recipegen.catalog import data_folder

    assert data_folder("templates") == ROOT / "templates"
    assert data_folder("recipes") == ROOT / "recipes"

"""docs/cli.md and docs/recipe.md say what the program says."""

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

HOME = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def generate() -> ModuleType:
    spec = importlib.util.spec_from_file_location("generate_docs", HOME / "scripts" / "generate_docs.py")
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def pages(generate: ModuleType) -> dict[str, str]:
    """Each page as it would be written now."""
    return {path: page() for path, page in generate.PAGES.items()}


def test_the_generated_pages_are_up_to_date(pages: dict[str, str]) -> None:
    for path, page in pages.items():
        written = (HOME / path).read_text("utf-8").splitlines()
        assert written == page.splitlines(), f"{path} is stale; run: python scripts/generate_docs.py"


def test_a_changed_page_is_called_stale(
    generate: ModuleType, pages: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(generate, "HOME", tmp_path)
    monkeypatch.setattr(generate, "PAGES", {path: pages[path].__str__ for path in pages})
    (tmp_path / "docs").mkdir()
    for path, page in pages.items():
        (tmp_path / path).write_text(page.replace("layers", "layrs", 1) if path == "docs/recipe.md" else page)
    assert generate.stale() == ["docs/recipe.md"]


def test_every_command_and_every_setting_is_on_a_page(generate: ModuleType, pages: dict[str, str]) -> None:
    cli, recipe = pages["docs/cli.md"], pages["docs/recipe.md"]
    assert all(f"## harken {verb}\n" in cli for verb in generate.COMMANDS)
    for section, of in generate.registry.sections_and_groups():
        kinds = generate.registry.built_in(section, of)
        fields = {field for kind in kinds for field in generate.registry.find_kind(section, kind, of).model_fields}
        assert [field for field in fields if f"| `{section}.{field}` |" not in recipe] == []


def test_every_setting_has_a_description(generate: ModuleType) -> None:
    known = [
        generate.registry.title(kind, of)
        for section, of in generate.registry.sections_and_groups()
        for kind in generate.registry.built_in(section, of)
    ]
    rows = [row for kind in known for row in generate.describe_settings(kind)]
    assert [
        r["path"] for r in rows if r["description"] == "kind of this section" and not r["path"].endswith("kind")
    ] == []

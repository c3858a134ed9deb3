"""Build report.html again from the run folder and the data that its recipe names."""

from collections.abc import Mapping
from pathlib import Path

from harken import recipe as recipes
from harken import run_folder
from harken.errors import BadInput, BadRun, BadSetting
from harken.events import Listener, silent
from harken.files import write_atomic
from harken.inference.run import Run, load
from harken.recipe import Recipe

from .page import report_page
from .sections import report_sections

REPORT = "report.html"


def rebuild_report(
    folder: str | Path, *, settings: Mapping[str, object] | None = None, listen: Listener = silent
) -> Path:
    """Write report.html again and return its path; the weights and all other files of the run stay the same.

    `settings` of the section report, such as {"report.samples": 0}, replace those of the recipe for this page.
    All other files are verified first, because the manifest gets a new checksum. Samples are computed from the data of
    the run: if the data cannot be read, an existing report stays, and a missing one is built without samples.
    """
    run = load(folder)
    if settings:
        run.recipe = _with_settings(run.recipe, settings)
    if not run.recipe.report.samples:
        run.facts.pop("example", None)  # a row of the data
    names = [name for name in run.facts["sha256"] if name != REPORT]
    run_folder.read_manifest(run.path, *names)
    cost = run_folder.read_json(run.path / "cost.json")
    with run_folder.lock_folder(run.path):
        page = _page(run, cost, listen)
        if page is not None:
            write_atomic(run.path / REPORT, page)
            run_folder.write_manifest(run.path, run.facts)
    return run.path / REPORT


def _with_settings(recipe: Recipe, settings: Mapping[str, object]) -> Recipe:
    """The recipe with these settings of the report."""
    if other := next((name for name in settings if not name.startswith("report.")), None):
        raise BadSetting(f"{other}: a finished run cannot be changed; only settings of the report, as report.samples=0")
    return recipes.resolve(("recipe", recipe.settings()), (recipes.OVERRIDE, dict(settings)))


def _page(run: Run, cost: Mapping[str, object], listen: Listener) -> str | None:
    """The page; None if an intact report has samples that cannot be computed again."""
    facts: dict[str, object] = {**run.facts, "name": run.path.name}
    recipe = {"recipe": run.recipe.toml(), "origins": run.facts.get("origins", {})}
    bare = facts | recipe | {"cost": cost, "log": run_folder.read_log(run.path)}
    if "imported" in run.facts:
        return report_page(bare)
    try:
        task = run.recipe.bind(run.recipe.load_data(run.tokenizer, listen=listen))
    except BadInput as error:
        exists = _is_intact(run)
        outcome = "the report stays as it is" if exists else "the report has no samples"
        listen("notice", text=f"{outcome}: {error}")
        return None if exists else report_page(bare)
    return report_page(facts | report_sections(run, task, run.path, cost) | recipe)


def _is_intact(run: Run) -> bool:
    try:
        run_folder.read_manifest(run.path, REPORT)
    except BadRun:
        return False
    return True

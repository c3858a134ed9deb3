"""Write docs/cli.md and docs/recipe.md from the program itself, or say which of them is stale.

python scripts/generate_docs.py            write them
python scripts/generate_docs.py --check    change nothing; exit 1 if one is stale
"""

import sys
from importlib.resources import files
from pathlib import Path
from typing import Any

import click

from harken import recipe, registry
from harken.cli import COMMANDS
from harken.cli import harken as program
from harken.cli.check import describe_settings

HOME = Path(__file__).resolve().parents[1]
WIDTH = 100
MADE = "<!-- made by scripts/generate_docs.py; change the program, not this page -->"
SECTIONS = {
    "data": "Where the examples come from and how they are cut.",
    "model": "The network and its size.",
    "task": "What is learned, and how it is judged.",
    "train": "How long, how fast, and what is kept.",
}


# --- docs/cli.md ------------------------------------------------------------------------------------------------------


def cli_page() -> str:
    top = click.Context(program, info_name="harken", **program.context_settings | {"terminal_width": WIDTH})
    lines = [
        MADE,
        "# The command line",
        "",
        "Exit codes: 0 done, 1 failed, 2 wrong usage or bad input, 130 stopped by Ctrl-C, 143 by SIGTERM. An error is",
        "one line on stderr. A training fails too if its loss ends as no number or the model does not pass its audit.",
        "`HARKEN_DEBUG=1` shows where it comes from, `HARKEN_CACHE` says where fetched and encoded data is kept.",
        "Settings (`section.key=value`) are listed in [recipe.md](recipe.md).",
        "",
        *_block("text", program.get_help(top)),
    ]
    for verb in COMMANDS:
        command = program.get_command(top, verb)
        assert command is not None, verb
        context = click.Context(command, info_name=verb, parent=top, terminal_width=WIDTH)
        lines += ["", f"## harken {verb}", "", *_block("text", command.get_help(context))]
    return "\n".join(lines) + "\n"


def _block(language: str, text: str) -> list[str]:
    return [f"```{language}", *(line.rstrip() for line in text.rstrip().split("\n")), "```"]


# --- docs/recipe.md ---------------------------------------------------------------------------------------------------


def recipe_page() -> str:
    lines = [
        MADE,
        "# Recipes",
        "",
        "A recipe is a TOML file with up to four sections. Everything left out has a default. The same dotted path",
        "is used in the file (`[model]` `layers = 6`), on the command line (`model.layers=6`), in Python",
        '(`settings={"model.layers": 6}`) and in errors. `harken check --settings KIND` prints the same tables.',
        "",
        "A later one wins: default, then dial (`size`, `style`, `optimizer`), then file, then command line.",
        "`harken train DATA --show` prints every value and where it comes from. A relative path in a recipe file is",
        "seen from the file's own folder; one given with a command, from where the command runs.",
    ]
    for section, sentence in SECTIONS.items():
        lines += ["", f"## {section}", "", sentence]
        for of in (of for shelf, of in registry.sections_and_groups() if shelf == section):
            for names in _alike(section, of):
                titles = [name + of for name in names]
                lines += ["", f"### {', '.join(titles)}", "", *_part(section, names, of)]
    lines += ["", "## Recipes that come with harken", ""]
    lines += [
        "`harken train my.txt` takes the one that fits the text. To name one: `harken train word data.path=my.txt`."
    ]
    for name in recipe.shipped_names():
        text = (files("harken.recipes") / f"{name}.toml").read_text("utf-8")
        lines += ["", f"### {name}", "", *_block("toml", text)]
    return "\n".join(lines) + "\n"


def _alike(section: str, of: str) -> list[list[str]]:
    """The built-in kinds of a section, those with the same settings together. Plug-ins have docs of their own."""
    groups: dict[str, list[str]] = {}
    for name in registry.BUILT_IN[section + of]:
        shown = [row for row in describe_settings(name + of) if not row["path"].endswith(".kind")]
        groups.setdefault(repr((shown, _dials(section, name, of))), []).append(name)
    return list(groups.values())


def _dials(section: str, name: str, of: str) -> dict[str, dict[str, dict[str, Any]]]:
    return {d: {v: dict(s) for v, s in t.items()} for d, t in registry.find_kind(section, name, of).dials.items()}


def _part(section: str, names: list[str], of: str) -> list[str]:
    """The tables of one kind: its settings, then what its dials stand for."""
    first = names[0]
    doc = " ".join((registry.find_kind(section, first, of).__doc__ or "").split())
    rows = [
        [f"`{r['path']}`", f"`{r['default']}`", r["accepted"], r["description"]] for r in describe_settings(first + of)
    ]
    if len(names) > 1:
        doc = f"{doc} {', '.join(names[1:])}: the same settings."
        rows[0][1:3] = "`" + "`, `".join(recipe.to_toml_value(n) for n in names) + "`", ", ".join(names)
    lines = [doc, "", *_table(["setting", "default", "accepted", "what it is"], rows)]
    for dial, values in _dials(section, first, of).items():
        columns = list(dict.fromkeys(name for stands in values.values() for name in stands))
        told = [
            [f"`{value}`", *(recipe.to_toml_value(stands[c]) if c in stands else "" for c in columns)]
            for value, stands in values.items()
        ]
        lines += ["", f"`{section}.{dial}` stands for:", "", *_table([dial, *columns], told)]
    return lines


def _table(heads: list[str], rows: list[list[str]]) -> list[str]:
    cells = [[cell.replace("|", "\\|") for cell in row] for row in [heads, ["---"] * len(heads), *rows]]
    return ["| " + " | ".join(row) + " |" for row in cells]


# --- write or check ---------------------------------------------------------------------------------------------------

PAGES = {"docs/cli.md": cli_page, "docs/recipe.md": recipe_page}


def stale() -> list[str]:
    """The pages that do not say what the program says now."""
    return [
        path
        for path, page in PAGES.items()
        if not (HOME / path).is_file() or (HOME / path).read_text("utf-8") != page()
    ]


def main() -> None:
    old = stale()
    if "--check" in sys.argv[1:]:
        for path in old:
            print(f"{path} is stale; run: python scripts/generate_docs.py", file=sys.stderr)
        sys.exit(1 if old else 0)
    for path in old:
        (HOME / path).parent.mkdir(exist_ok=True)
        (HOME / path).write_text(PAGES[path](), "utf-8")
        print(f"wrote {path}")


if __name__ == "__main__":
    main()

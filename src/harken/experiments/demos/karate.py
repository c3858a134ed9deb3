"""harken demo karate: who goes with whom when a club splits, told from two members and from who knows whom."""

import csv
from itertools import chain
from pathlib import Path
from shlex import quote
from typing import Any

from harken import run_folder as folders
from harken.data.cache import cache_folder
from harken.events import Listener, silent
from harken.experiments.report.graph_plot import Said, picture
from harken.experiments.train import train
from harken.inference.run import Run

from .translate import Shown

ZACHARY = "W. W. Zachary, An information flow model for conflict and fission in small groups (1977), by networkx (BSD)"
SETTINGS = {"data.valid": 0.0, "model.kind": "gcn", "task.l2": 5e-3}
SHOWN = 6  # members that are told


def karate(*, minutes: float = 0.05, out: str | Path | None = None, listen: Listener = silent) -> Shown:
    """Learn from the two leaders alone on which side each member of a club ends."""
    folder, whose = _club(listen)
    run = train(folder, out=out, minutes=minutes, settings=SETTINGS, listen=listen)
    drawn, (names, pairs, said) = run.path / "graph.svg", _said(run)
    folders.write(drawn, picture(names, pairs, said))
    asked = [n for n, one in enumerate(said) if not one.learned]
    unsure = sorted(asked, key=lambda n: said[n].probability)[:SHOWN]
    right = sum(said[n].label == said[n].truth for n in asked)
    lines = [f"{right} of {len(asked)} are right; the least certain (in brackets: where they went):"]
    lines += [f"  {names[n]:<4} {said[n].label} {100 * said[n].probability:.0f} %   ({said[n].truth})" for n in unsure]
    lines += [f"the club as a picture: {drawn}"]
    place = quote(str(run.path))
    hints = {
        f"harken classify {place} {quote(names[unsure[0]])}": "ask it of one member",
        f"harken train {quote(str(folder))} model.kind=gat": "let members weigh whom they hear",
        "harken train my-folder": "your own nodes.csv and edges.csv",
    }
    title = "From two leaders and who knows whom, it says on which side each other member ended:"
    return Shown(run, whose, title=title, lines=lines, hints=hints)


def _said(run: Run) -> tuple[list[str], list[tuple[int, int]], list[Said]]:
    """The members, who knows whom, and what is said of each."""
    data = run.recipe.open(run.tokenizer)
    names, learned = data.raw.names, {*data.train}
    said = [
        Said(labels[0]["label"], labels[0]["probability"], n in learned, data.raw.said[n])
        for n, labels in enumerate(run.classify(names))
    ]
    return names, [(a, b) for a, b in data.raw.pairs.tolist()], said


def _club(listen: Listener) -> tuple[Path, str]:
    """The karate club as a folder, or one of our own where networkx is missing; and whom to thank."""
    try:
        import networkx

        G: Any = networkx.karate_club_graph()
        clubs, edges, whose = [G.nodes[n]["club"] for n in G], [*G.edges], ZACHARY
    except ImportError:
        listen("notice", text="networkx is missing, which has the karate club; one of harken's own is taken instead")
        clubs, edges = own_club()
        whose = "harken's own (Apache-2.0)"
    folder = cache_folder("graphs", "karate")
    leaders = (0, len(clubs) - 1)
    rows = ([n, club, "train" if n in leaders else "test"] for n, club in enumerate(clubs))
    for name, table in (
        ("nodes.csv", chain([["member", "club", "split"]], rows)),
        ("edges.csv", chain([["source", "target"]], edges)),
    ):
        with (folder / name).open("w", newline="", encoding="utf-8") as file:
            csv.writer(file).writerows(table)
    return folder, whose


def own_club(half: int = 17) -> tuple[list[str], list[tuple[int, int]]]:
    """Two sides of a club: each member knows some next to it and the leader of its side; a few know the other side."""
    clubs = ["first"] * half + ["second"] * half
    edges = set[tuple[int, int]]()
    for side in (0, half):
        leader = side if side == 0 else 2 * half - 1
        for n in range(half):
            me, beside = side + n, side + (n + 1) % half
            edges |= {(min(me, other), max(me, other)) for other in (beside, leader) if other != me and n % 3 < 2}
            edges.add((min(me, beside), max(me, beside)))
    edges |= {(n, half + n) for n in range(2, half, 5)}
    return clubs, sorted(edges)

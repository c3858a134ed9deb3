"""harken demo stories, gcd and karate: examples of the lectures."""

import csv
from itertools import chain
from pathlib import Path
from shlex import quote
from typing import Any, cast

from harken.data.cache import cache_folder
from harken.data.synthetic.stories import stories as generate_stories
from harken.events import Listener, silent
from harken.experiments.report.graph_plot import NodePrediction, graph_svg
from harken.experiments.train import train
from harken.files import write_atomic
from harken.inference.run import Labels, Run

from . import DemoOutput, demo_texts

TASK, N_QUESTIONS = 2, 10_000  # where an object is that people carry around
JOE = (
    "Joe went to the kitchen",
    "Joe picked up milk",
    "Joe went to the bathroom",
    "Joe put down the milk",
    "Joe went to the bedroom",
)
QUESTION = "Where is the milk?"
UNSEEN_SEED = 1  # of a story that the training does not use
STORIES = {"model.d": 32, "task.linear_start": 2, "train.lr": 0.5}
GCD = {"data.base": 30, "data.max_operand": 10_000, "data.operands": "log-uniform", "data.outcomes": "log-uniform"}
PROBLEMS = ("160 120", "300 450", "77 42", "1001 13")
SHOWN_GCDS = (1, 2, 3, 4, 5, 6, 7, 10, 11, 14, 15, 30)
CHARTON = "generated data; after F. Charton, Learning the greatest common divisor"
KARATE = {"data.valid": 0.0, "model.kind": "gcn", "task.l2": 5e-3}
ZACHARY = "W. W. Zachary, An information flow model for conflict and fission in small groups (1977), by networkx (BSD)"
N_UNCERTAIN = 6  # predictions shown


def stories(*, minutes: float = 3.0, out: str | Path | None = None, listen: Listener = silent) -> DemoOutput:
    """Train a memory network on generated stories, then ask a question about the lecture's story of Joe."""
    path = cache_folder("stories") / "stories.txt"
    path.write_text("".join(generate_stories(TASK, N_QUESTIONS)))
    run = train(path, out=out, minutes=minutes, settings=STORIES, listen=listen)
    reply = run.story(JOE).ask(QUESTION)
    hops = reply["hops"]
    rows = [f"{' '.join(f'{hop[n]:5.2f}' for hop in hops)}   {line}" for n, line in enumerate(JOE)]
    answer = f"{QUESTION}   {reply['answer']}   ({reply['score']:.2f})"
    lines = [" ".join(f"hop {n}" for n in range(1, len(hops) + 1)), *rows, "", answer]
    *story, question = _unseen_story()
    files = run.path / "joe.txt", run.path / "story.txt"
    for file, text in zip(files, (JOE, story), strict=True):
        file.write_text("".join(f"{line}\n" for line in text))
    names = dict(zip(("joe", "story"), (quote(str(file)) for file in files), strict=True))
    texts = demo_texts("stories", run, **names, question=quote(question))
    return DemoOutput(run, "harken's simulator (Apache-2.0)", lines=lines, **texts)


def _unseen_story() -> list[str]:
    """The lines of a story that is not in the training data, and its last question, of the kind that is learned."""
    lines = [line.partition(" ")[2].strip() for line in generate_stories(TASK, 3, UNSEEN_SEED)]
    return [line for line in lines if "\t" not in line] + [lines[-1].partition("\t")[0]]


def gcd(*, minutes: float = 2.0, out: str | Path | None = None, listen: Listener = silent) -> DemoOutput:
    """Train on gcds in base 30, whose frequencies decide which are learned; show each with its accuracy."""
    run = train("maths:gcd", out=out, minutes=minutes, settings=GCD, listen=listen)
    answers = run.translate(list(PROBLEMS), beam=1)
    lines = [f"{problem:<10} ->  {answer}" for problem, answer in zip(PROBLEMS, answers, strict=True)]
    lines += ["", "gcd   right   most predicted       divisor visible in the last digits (base 30)"]
    parts = run.facts["parts"].get("test", {})
    for part in (parts[f"gcd {k}"] for k in SHOWN_GCDS if f"gcd {k}" in parts):
        predicted, right = "no number", f"{part['position']:>3}  {100 * part['accuracy']:>4.0f} %"
        if "most_predicted" in part:
            predicted = f"{part['most_predicted']:.0f} ({100 * part['most_predicted_fraction']:.0f} %)"
        lines.append(f"{right}   {predicted:<19}  {part['base_divisor']}")
    n_learned, protocol = run.metrics["test"]["learned"], run.facts["protocol"]["test"]
    lines += ["", f"learned: {n_learned:.0f} of {len(parts)}: {protocol['gcds_learned']}"]
    return DemoOutput(run, CHARTON, lines=lines, **demo_texts("gcd", run))


def karate(*, minutes: float = 0.05, out: str | Path | None = None, listen: Listener = silent) -> DemoOutput:
    """Train on the two leaders of a club and predict the group of every other member after the split."""
    folder, attribution = _write_club(listen)
    run = train(folder, out=out, minutes=minutes, settings=KARATE, listen=listen)
    svg, (names, edges, predictions) = run.path / "graph.svg", _predict(run)
    write_atomic(svg, graph_svg(names, edges, predictions))
    held_out = [(name, node) for name, node in zip(names, predictions, strict=True) if not node.learned]
    uncertain = sorted(held_out, key=lambda pair: pair[1].probability)[:N_UNCERTAIN]
    n_correct = sum(node.label == node.truth for _, node in held_out)
    lines = [f"{n_correct} of {len(held_out)} are correct; the least certain (in parentheses: the true group):"]
    lines += [f"  {name:<4} {node.label} {100 * node.probability:.0f} %   ({node.truth})" for name, node in uncertain]
    texts = demo_texts("karate", run, member=quote(uncertain[0][0]), folder=quote(str(folder)))
    return DemoOutput(run, attribution, lines=[*lines, f"graph: {svg}"], **texts)


def _predict(run: Run) -> tuple[list[str], list[tuple[int, int]], list[NodePrediction]]:
    """The members, the edges, and a prediction for each member."""
    data: Any = run.recipe.load_data(run.tokenizer)
    names, labelled = data.tables.node_names, {*data.train}
    predictions = [
        NodePrediction(labels[0]["label"], labels[0]["probability"], n in labelled, data.tables.labels[n])
        for n, labels in enumerate(cast(list[Labels], run.classify(names)))
    ]
    return names, [(a, b) for a, b in data.tables.edges.tolist()], predictions


def _write_club(listen: Listener) -> tuple[Path, str]:
    """Write the karate club, or a generated one without networkx, into a folder; return it and its attribution."""
    try:
        import networkx

        G: Any = networkx.karate_club_graph()
        clubs, edges, attribution = [G.nodes[n]["club"] for n in G], [*G.edges], ZACHARY
    except ImportError:
        listen("notice", text="networkx, which contains the karate club, is not installed; using a generated club")
        clubs, edges = generate_club()
        attribution = "generated by harken (Apache-2.0)"
    folder, leaders = cache_folder("graphs", "karate"), (0, len(clubs) - 1)
    nodes = ([n, club, "train" if n in leaders else "test"] for n, club in enumerate(clubs))
    heads = {"nodes.csv": ["member", "club", "split"], "edges.csv": ["source", "target"]}
    for (name, head), rows in zip(heads.items(), (nodes, edges), strict=True):
        with (folder / name).open("w", newline="", encoding="utf-8") as file:
            csv.writer(file).writerows(chain([head], rows))
    return folder, attribution


def generate_club(half: int = 17) -> tuple[list[str], list[tuple[int, int]]]:
    """Two groups: most members know their neighbor and their leader; a few know the other group."""
    clubs = ["first"] * half + ["second"] * half
    edges = set[tuple[int, int]]()
    for start, leader in ((0, 0), (half, 2 * half - 1)):
        for n in range(half):
            member, neighbor = start + n, start + (n + 1) % half
            known = [node for node in (neighbor, leader) if node != member and n % 3 < 2]
            edges |= {(min(member, node), max(member, node)) for node in (neighbor, *known)}
    edges |= {(n, half + n) for n in range(2, half, 5)}
    return clubs, sorted(edges)

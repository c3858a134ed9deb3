"""harken demo stories: a memory network learns to find things, and answers the lecture's story of Joe and the milk."""

from pathlib import Path
from shlex import quote

from harken.data.cache import cache_folder
from harken.data.synthetic.stories import stories as told
from harken.events import Listener, silent
from harken.experiments.train import train

from .translate import Shown

KIND, QUESTIONS = 2, 10_000  # where a thing is that people carry about
JOE = (
    "Joe went to the kitchen",
    "Joe picked up milk",
    "Joe went to the bathroom",
    "Joe put down the milk",
    "Joe went to the bedroom",
)
ASKED = "Where is the milk?"
SETTINGS = {"model.d": 32, "task.linear_start": 2, "train.lr": 0.5}


def stories(*, minutes: float = 3.0, out: str | Path | None = None, listen: Listener = silent) -> Shown:
    """Learn from harken's own stories, then read the lecture's."""
    path = cache_folder("stories") / "stories.txt"
    path.write_text("".join(told(KIND, QUESTIONS)))
    run = train(path, out=out, minutes=minutes, settings=SETTINGS, listen=listen)
    found = run.story(JOE).ask(ASKED)
    hops = [f"{' '.join(f'{hop[n]:5.2f}' for hop in found['hops'])}   {line}" for n, line in enumerate(JOE)]
    heads = " ".join(f"hop {n}" for n in range(1, len(found["hops"]) + 1))
    answer = f"{ASKED}   {found['answer']}   ({found['score']:.2f})"
    (story := run.path / "joe.txt").write_text("".join(f"{line}\n" for line in JOE))
    place = quote(str(run.path))
    hints = {
        f'harken ask {place} {quote(str(story))} "Where was Joe?"': "ask it something else",
        f"harken eval {place}": "its numbers again",
        "harken compare stories-2 --models memnet,gpt,bert": "Transformers on the same stories",
    }
    title = "It reads the lecture's story; each hop looks at some of its lines:"
    return Shown(run, "harken's own simulator (Apache-2.0)", title=title, lines=[heads, *hops, "", answer], hints=hints)

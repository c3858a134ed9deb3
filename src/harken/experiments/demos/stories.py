"""harken demo stories: a memory network answers a question about the lecture's story of Joe and the milk."""

from pathlib import Path
from shlex import quote

from harken.data.cache import cache_folder
from harken.data.synthetic.stories import stories as generate_stories
from harken.events import Listener, silent
from harken.experiments.train import train

from .output import DemoOutput

TASK, N_QUESTIONS = 2, 10_000  # where an object is that people carry around
JOE = (
    "Joe went to the kitchen",
    "Joe picked up milk",
    "Joe went to the bathroom",
    "Joe put down the milk",
    "Joe went to the bedroom",
)
QUESTION = "Where is the milk?"
SETTINGS = {"model.d": 32, "task.linear_start": 2, "train.lr": 0.5}


def stories(*, minutes: float = 3.0, out: str | Path | None = None, listen: Listener = silent) -> DemoOutput:
    """Train on generated stories, then answer a question about the lecture's."""
    path = cache_folder("stories") / "stories.txt"
    path.write_text("".join(generate_stories(TASK, N_QUESTIONS)))
    run = train(path, out=out, minutes=minutes, settings=SETTINGS, listen=listen)
    reply = run.story(JOE).ask(QUESTION)
    rows = [f"{' '.join(f'{hop[n]:5.2f}' for hop in reply['hops'])}   {line}" for n, line in enumerate(JOE)]
    head = " ".join(f"hop {n}" for n in range(1, len(reply["hops"]) + 1))
    answer = f"{QUESTION}   {reply['answer']}   ({reply['score']:.2f})"
    (story := run.path / "joe.txt").write_text("".join(f"{line}\n" for line in JOE))
    folder = quote(str(run.path))
    hints = {
        f'harken ask {folder} {quote(str(story))} "Where was Joe?"': "ask another question",
        f"harken eval {folder}": "evaluate it again",
        "harken compare stories-2 --models memnet,gpt,bert": "compare with Transformers on the same stories",
    }
    lines = [head, *rows, "", answer]
    title = "The lecture's story, with the attention weights of each hop:"
    return DemoOutput(run, "harken's simulator (Apache-2.0)", title=title, lines=lines, hints=hints)

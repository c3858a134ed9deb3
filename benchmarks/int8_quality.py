"""int8 and prompt-lookup decoding on a real language model: how far the scores move, and how much faster it is.

    python -m harken import smollm2 --out runs/smollm2
    python benchmarks/int8_quality.py runs/smollm2

Each prompt is continued greedily in float32. The other precisions then score the same tokens: the share of positions
with the same most likely token, the median over positions of the largest difference of a logit, and the mean KL
divergence. `same_text` counts the texts that a precision continues by itself with the same tokens. Prompt lookup:
tokens per second with and without, interleaved, for continuing and for summarizing.
"""

import argparse
import json
import statistics
import time

import torch
import torch.nn.functional as F

import harken
from harken.decode.sampling import SamplingSettings, TextGenerator
from harken.inference.answers.generate import encode_prompt

PROMPTS = [
    "The capital of France is", "Once upon a time, there was a little girl who", "Gravity is the force that",
    "def fibonacci(n):\n", "The three most common types of renewable energy are",
    "To make a good cup of tea, you need to", "In 1969, the first humans",
    "My favourite book is about a young wizard who",
]  # fmt: skip
ARTICLE = (
    "The lighthouse at Cape Mora was built in 1848 by the engineer Anna Lindqvist. For ninety years its keepers lived "
    "on the rock with their families, carried the oil up two hundred steps and cleaned the lenses by hand. In 1938 the "
    "lamp was connected to the power line of the village, and in 1971 the last keeper left the lighthouse. Since 2004 "
    "the village has rented the rooms of the keepers to visitors, and the lighthouse pays for its own repairs."
)
TASKS = {
    "continue": "The history of the world is the history of the ways in which people have lived together, and",
    "summarize": f"Article: {ARTICLE}\n\nSummary of the article in two sentences: The lighthouse at Cape Mora",
}
GREEDY = SamplingSettings(temperature=0.0)


def generated(generator: TextGenerator, ids: list[int], tokens: int) -> list[int]:
    return [int(token) for token in generator.generate([ids], tokens, GREEDY, seed=0)]


@torch.inference_mode()
def quality(run: harken.Run, plain: harken.Run, texts: list[tuple[list[int], list[int]]]) -> dict[str, float]:
    same, difference, divergence, same_texts = [], [], [], 0
    for prompt, tokens in texts:
        start, sequence = len(prompt) - 1, torch.tensor([[*prompt, *tokens[:-1]]])
        a, b = (r.model.scores(sequence)[0, start:].float() for r in (run, plain))
        same.append(a.argmax(-1) == b.argmax(-1))
        difference.append((a - b).abs().amax(-1))
        divergence.append(F.kl_div(a.log_softmax(-1), b.softmax(-1), reduction="none").sum(-1))
        same_texts += generated(TextGenerator(run.model), prompt, len(tokens)) == tokens
    return {
        "same_tokens": round(float(torch.cat(same).float().mean()), 4),
        "logit_difference": round(float(torch.cat(difference).median()), 3),
        "kl_divergence": round(float(torch.cat(divergence).mean()), 5),
        "same_text": same_texts,
        "texts": len(texts),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run")
    parser.add_argument("--precisions", nargs="+", default=["float32", "int8"])
    parser.add_argument("--tokens", type=int, default=32)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    runs = {p: harken.load(options.run, device="cpu", precision=p) for p in ["float32", *options.precisions]}
    plain = runs["float32"]
    prompts = [[int(n) for n in encode_prompt(plain, text)] for text in PROMPTS]
    texts = [(ids, generated(TextGenerator(plain.model), ids, options.tokens)) for ids in prompts]
    for precision in options.precisions:
        if precision != "float32":
            print(json.dumps({"precision": precision, **quality(runs[precision], plain, texts)}), flush=True)
    for precision in options.precisions:
        model = runs[precision].model
        generators = {lookup: TextGenerator(model, lookup=lookup) for lookup in (False, True)}
        for task, prompt in TASKS.items():
            ids, speeds, outputs = [int(n) for n in encode_prompt(plain, prompt)], {False: [], True: []}, {}
            for n in range(-1, options.rounds):
                for lookup, generator in generators.items():
                    start = time.perf_counter()
                    outputs[lookup] = generated(generator, ids, 2 * options.tokens)
                    if n >= 0:
                        speeds[lookup].append(2 * options.tokens / (time.perf_counter() - start))
            rates = [round(statistics.median(speeds[lookup]), 1) for lookup in (False, True)]
            row = {"precision": precision, "task": task, "plain": rates[0], "prompt_lookup": rates[1]}
            row |= {"ratio": round(rates[1] / rates[0], 2), "same_text": outputs[False] == outputs[True]}
            print(json.dumps(row), flush=True)


if __name__ == "__main__":
    main()

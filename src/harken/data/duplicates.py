"""Examples that occur in two splits, exactly or nearly: counted, and named in one line each."""

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from harken.events import Listener

MAX_SHOWN = 3  # pairs of examples named in a notice
NOT_WORD = re.compile(r"[\W_]+")


class Identity(NamedTuple):
    """What two examples may share, and where the example is; an empty key equals no other."""

    exact: str
    near: str = ""
    group: str = ""
    location: str = ""


def near_duplicate_key(text: str) -> str:
    """The text without case, punctuation and white space: near-duplicates have the same key."""
    return NOT_WORD.sub("", text.casefold())


def duplicate_notices(
    train: Sequence[Identity], held_out: Mapping[str, Sequence[Identity]], dropped: Sequence[Identity]
) -> Iterator[str]:
    """What was dropped from train because of a held-out example, and what is in two splits all the same."""
    everything = [example for examples in held_out.values() for example in examples]
    equal = _shared(everything, dropped, "exact")
    if equal:
        yield f"dropped {len(equal):,} training examples that also occur in valid or test{_named(equal)}"
    if n_grouped := len(dropped) - len(equal):
        names = sorted({example.group for example in everything} & {example.group for example in dropped} - {""})
        shown = ", ".join(map(repr, names[:MAX_SHOWN])) + ", ..." * (len(names) > MAX_SHOWN)
        yield f"dropped {n_grouped:,} training examples of groups that also occur in valid or test ({shown})"
    if both := _shared(held_out.get("valid", ()), held_out.get("test", ()), "exact"):
        reason = "the best weights are chosen on valid, so they favor these"
        yield f"{len(both):,} test examples also occur in valid{_named(both)}; {reason}"
    for split, examples in held_out.items():
        if near := _shared(train, examples, "near"):
            yield _near_notice(split, len(examples), near)


def trained_on_notice(other: Sequence[object], train: Iterable[object]) -> str:
    """The notice about other data whose keys occur in the training split; empty if none does."""
    n_known = sum(key in known for key in other) if (known := {*train}) else 0
    reason = "the metrics are higher than on new data"
    return f"{n_known:,} of {len(other):,} examples are also in the training split; {reason}" if n_known else ""


def report_trained_on(listen: Listener, path: str, other: Sequence[object], train: Iterable[object]) -> None:
    """The notice about other data, given by the keys of its examples, if some occur in the training split."""
    if notice := trained_on_notice(other, train):
        listen("notice", text=f"{path}: {notice}")


def conflict_notice(examples: Iterable[tuple[str, tuple[str, ...], str]]) -> str:
    """The notice about equal examples with different labels, from (key, labels, location); empty if there are none."""
    seen = dict[str, dict[tuple[str, ...], str]]()
    for key, labels, location in examples:
        seen.setdefault(key, {}).setdefault(tuple(sorted(labels)), location)
    conflicts = [by_label for by_label in seen.values() if len(by_label) > 1]
    shown = [
        ", ".join(f"{location} is {', '.join(labels) or 'nothing'}" for labels, location in by_label.items())
        for by_label in conflicts[:MAX_SHOWN]
    ]
    more = "; ..." * (len(conflicts) > MAX_SHOWN)
    return f"equal examples with different labels: {len(conflicts):,} ({'; '.join(shown)}{more})" if conflicts else ""


class NearDuplicates:
    """Counts the held-out texts that nearly equal a training text, while the training texts are read once."""

    def __init__(self, held_out: Mapping[str, Sequence[str]]) -> None:
        self.held_out = {
            split: [Identity(x, near_duplicate_key(x), "", x) for x in held_out[split]] for split in held_out
        }
        self.keys = {example.near for examples in self.held_out.values() for example in examples} - {""}
        self.train = dict[str, Identity]()

    def see(self, text: str) -> bool:
        """Note a training text; always true, to be called while a stream is read."""
        if self.keys and (key := near_duplicate_key(text)) in self.keys:
            self.train.setdefault(key, Identity(text, key, "", text))
        return True

    def notices(self, locate: Callable[[Collection[str]], Mapping[str, str]]) -> Iterator[str]:
        """One line for each held-out split with near-duplicates; `locate` finds the places of some texts."""
        for split, examples in self.held_out.items():
            if near := _shared([*self.train.values()], examples, "near"):
                places = locate({text for pair in near[:MAX_SHOWN] for text in pair})
                yield _near_notice(split, len(examples), [(places.get(a, ""), places.get(b, "")) for a, b in near])


def _near_notice(split: str, n_examples: int, near: Sequence[tuple[str, str]]) -> str:
    share = f"{len(near):,} of {n_examples:,} {split} examples ({len(near) / n_examples:.0%})"
    what = "equal a training example except for case, punctuation and blanks"
    return f"{share} {what}{_named(near, '~')}; remove them, or the metrics are too good"


def _shared(first: Sequence[Identity], second: Sequence[Identity], key: str) -> list[tuple[str, str]]:
    """For each example of `second` that shares a key with one of `first`: the locations of both."""
    index = Identity._fields.index(key)
    locations = dict[str, str]()
    for example in first:
        locations.setdefault(example[index], example.location)
    return [(e.location, locations[e[index]]) for e in second if e[index] and e[index] in locations]


def _named(pairs: Sequence[tuple[str, str]], relation: str = "=") -> str:
    """The first pairs of locations, in brackets; empty if examples have no location."""
    texts = [f"{a} {relation} {b}" for a, b in pairs[:MAX_SHOWN] if a and b]
    return f" ({', '.join(texts)}{', ...' * (len(pairs) > MAX_SHOWN)})" if texts else ""

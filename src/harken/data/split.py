"""Examples from files of some layout: which are learned from, and which are held out.

A held-out share is drawn by a hash of what an example is about, so that adding lines moves nothing, and all that is
said of one thing stands on one side.
"""

from dataclasses import MISSING, dataclass, fields, replace
from pathlib import Path
from typing import Annotated, Any, ClassVar, TypeVar, cast

from pydantic import ConfigDict, Field, create_model

from harken.errors import BadInput, BadRun, BadSetting
from harken.events import Listener, silent
from harken.settings import Part

from .pairs.source import key
from .text.source import NAMED, TextSource, fingerprint, is_named

LABELS = "labels.json"
KEPT = ConfigDict(strict=True, extra="forbid", allow_inf_nan=False)  # in this file nothing is guessed
Labels = Annotated[list[str], Field(min_length=1)]
Positive = Annotated[float, Field(gt=0)]
Words = TypeVar("Words")
MOST = 3000  # examples held out by a share: more would cost time and tell little


def kept(kind: type[Words], folder: Path, what: str, **more: Any) -> Words:
    """What a run keeps in its labels.json, and beside it, if all of it is as the fields of its kind say."""
    own = [f for f in fields(cast(Any, kind)) if f.name not in more]
    told: Any = {f.name: (f.type, ... if f.default is MISSING else f.default) for f in own}
    strict: Any = create_model(kind.__name__, __config__=KEPT, **told)
    try:
        return kind(**dict(strict.model_validate_json((folder / LABELS).read_bytes())), **more)
    except (OSError, ValueError):
        raise BadRun(f"{folder / LABELS}: does not tell {what}; take it from a copy, or train again") from None


@dataclass(frozen=True, eq=False)
class SplitData:
    """Opened examples by split."""

    settings: Any
    words: Any  # what its numbers mean: what a run keeps
    train: Any
    splits: dict[str, Any]  # valid and test, where there are any
    sha256: str
    learned: bool = True  # train is what the run learned from; else that is gone, and a judged split stands in for it

    @property
    def vocab(self) -> Any:
        return self.words.vocab

    @property
    def tokenizer(self) -> Any:
        return self.words

    @property
    def parts(self) -> dict[str, Any]:
        """Every split, what is learned from among them."""
        return {"train": self.train, **self.splits}


class FileSource(Part):
    """The settings of data that is split by its files, or by a share of them."""

    path: str | None = Field(None, description="a file or a folder; files named train, valid, test are the splits")
    train: str | None = Field(None, description="what to learn from, instead of path")
    valid: str | float = Field(0.1, description=f"the same, or the share held out while learning, {MOST:,} at most")
    test: str | float = Field(0.05, description=f"the same, or the share kept for the last judgement, {MOST:,} at most")
    examples: int | None = Field(None, ge=1, description="learn from the first so many examples only")
    sha256: str | None = Field(None, description="fingerprint of the files; a run refuses to be repeated on others")

    def located(self) -> Any:
        """The same settings with absolute paths."""
        paths = {name: getattr(self, name) for name in ("path", "train", "valid", "test")}
        return self.model_copy(update={n: str(Path(p).absolute()) for n, p in paths.items() if isinstance(p, str)})

    @property
    def _home(self) -> str:
        if not (home := self.train or self.path):
            raise BadSetting(f"data.path is not given; name a file or a folder: data.path=my.{self.kind}")  # type: ignore[attr-defined]
        return home


class SplitSource(FileSource):
    """The settings of such data. A kind brings `read`, `about`, `encoded` and `_words`."""

    opened: ClassVar[type[Any]] = SplitData

    # --- what a kind brings -------------------------------------------------------------------------------------------

    def read(self, path: Path, listen: Listener) -> list[Any]:
        """The examples of a file."""
        raise NotImplementedError

    def about(self, example: Any) -> str:
        """What decides on which side an example stands."""
        raise NotImplementedError

    def same(self, example: Any) -> str:
        """What two examples have in common of which one must not be learned from if the other is held out."""
        return self.about(example)

    def encoded(self, examples: list[Any], words: Any, *, learn: bool) -> Any:
        """The examples as numbers; `learn`: without those from which nothing can be learned."""
        raise NotImplementedError

    def _words(self, learn: list[Any], given: Any, listen: Listener) -> Any:
        """What the numbers of these examples mean; what is given stays, as far as it is enough."""
        raise NotImplementedError

    # --- open ---------------------------------------------------------------------------------------------------------

    def open(self, *, stateful: bool = False, tokenizer: Any = None, listen: Listener = silent) -> Any:
        """Read, split and encode the examples."""
        files = self._files()
        found = {split: [e for p in some for e in self.read(p, listen)] for split, some in files.items()}
        digest = fingerprint(self._read_from(files, found), self.sha256, self._home)
        held = {self.same(e) for split in ("valid", "test") for e in found.get(split, ())}
        free = [e for e in found["train"] if self.same(e) not in held]  # what may be held out besides
        if taken := len(found["train"]) - len(free):
            listen("notice", text=f"training examples left out because they are held out too: {taken:,}")
        found["train"] = free
        found |= self._drawn(found)
        held |= {self.same(e) for split in ("valid", "test") for e in found.get(split, ())}
        learn = [e for e in found.pop("train") if self.same(e) not in held][: self.examples]
        words = self._words(learn, tokenizer, listen) if learn else None
        train = self.encoded(learn, words, learn=True) if learn else []
        if not len(train):
            raise BadInput(f"{self._home}: there is nothing to learn from; give more examples")
        splits = {
            split: self.encoded(found[split], words, learn=False) for split in ("valid", "test") if found.get(split)
        }
        for split in ("valid", "test"):
            if getattr(self, split) and split not in splits:
                listen("notice", text=f"data.{split}: the examples are too few to hold a part of them out")
        return self.opened(self, words, train, splits, digest)

    def other(self, path: str, split: str, *, tokenizer: Any, stateful: bool = False, listen: Listener = silent) -> Any:
        """The same data with other examples as one of its splits; these stand alone where the run's own are gone."""
        files = TextSource().files(Path(path))
        found = self.encoded([e for p in files for e in self.read(p, listen)], tokenizer, learn=False)
        if not len(found):
            raise BadInput(f"{path}: there is nothing to judge; give a file with examples")
        try:
            opened = self.model_copy(update={"sha256": None}).open(tokenizer=tokenizer)
        except BadInput as error:
            listen("notice", text=f"the free baselines are left out, for lack of what they learn from: {error}")
            return self.opened(self, tokenizer, found, {split: found}, fingerprint(files, None, path), learned=False)
        return replace(opened, splits={**opened.splits, split: found})

    def _files(self) -> dict[str, list[Path]]:
        """For each split that has files of its own, these; those to learn from always."""
        every = TextSource().files(Path(self._home))
        named = {split: [p for p in every if is_named(p, words)] for split, words in NAMED.items()}
        found = {"train": every}
        if len(every) > 1 and not self.train and (named["valid"] or named["test"]):
            held = {*named["valid"], *named["test"]}
            found = named | {"train": named["train"] or [p for p in every if p not in held]}
        for split in ("valid", "test"):
            if isinstance(given := getattr(self, split), str):
                found[split] = TextSource().files(Path(given))
        return {split: some for split, some in found.items() if some}

    def _read_from(self, files: dict[str, list[Path]], found: dict[str, list[Any]]) -> list[Path]:
        """All files that were read."""
        return [path for some in files.values() for path in some]

    def _drawn(self, found: dict[str, list[Any]]) -> dict[str, list[Any]]:
        """The examples held out by a share: test from one end of the keys' range, valid from the other."""
        drawn = dict[str, list[Any]]()
        for split in ("valid", "test"):
            share = getattr(self, split)
            if split in found or isinstance(share, str):
                continue
            if not 0 <= share < 1:
                raise BadSetting(f"data.{split} = {share}: a share of the examples lies between 0 and 1")
            keys = ((key(self.about(e)), e) for e in found["train"])
            places = ((n if split == "test" else 2**64 - 1 - n, e) for n, e in keys)
            out = sorted((place for place in places if place[0] < share * 2**64), key=lambda place: place[0])
            drawn[split] = [e for _, e in out[:MOST]]
        return drawn

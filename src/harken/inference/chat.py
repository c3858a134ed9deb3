"""Chat with an instruction-tuned model. Turns are delimited with the special tokens the model was trained on.

The three chat templates are ours, selected by the special tokens of the tokenizer; no template of a model is executed.
A special token inside a message is encoded as plain text, so a message cannot end a turn or open another.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Unpack

from harken.decode.sampling import SamplingSettings
from harken.errors import BadInput
from harken.events import Listener, Overflow, report_overflow, warn_of_overflow

from .answers import SamplingOptions
from .loaded_model import LoadedModel

DEFAULT_SYSTEM_MESSAGE = "You are a helpful assistant."


@dataclass(frozen=True)
class ChatTemplate:
    """Layout of a turn: start token, role, optional header-end token, separator, message, end token, suffix."""

    start: str
    end: str
    header_end: str = ""  # token after the role
    separator: str = "\n"  # between role and message
    suffix: str = ""  # after the end token
    assistant: str = "assistant"  # role of the model
    system: bool = True  # False: the system message is put before the first user message


CHAT_TEMPLATES = (
    ChatTemplate("<|im_start|>", "<|im_end|>", suffix="\n"),
    ChatTemplate("<|start_header_id|>", "<|eot_id|>", header_end="<|end_header_id|>", separator="\n\n"),
    ChatTemplate("<start_of_turn>", "<end_of_turn>", suffix="\n", assistant="model", system=False),
)


class Chat:
    """A conversation. `send` streams the reply; earlier turns are part of the prompt.

    The oldest turns are dropped when the conversation exceeds the context.
    """

    def __init__(
        self,
        run: LoadedModel,
        *,
        system: str | None = DEFAULT_SYSTEM_MESSAGE,
        max_new_tokens: int = 512,
        seed: int = 0,
        listen: Listener = warn_of_overflow,
        **sampling: Unpack[SamplingOptions],
    ) -> None:
        run.require("generate")
        self.run, self.max_new_tokens, self.seed, self.listen = run, max_new_tokens, seed, listen
        self.sampling = SamplingSettings.from_options({"temperature": 0.6, **sampling})
        tokenizer = run.tokenizer
        self.special_ids = dict(zip(tokenizer.token_texts(tokenizer.special_ids), tokenizer.special_ids, strict=True))
        templates = [t for t in CHAT_TEMPLATES if {t.start, t.end, t.header_end or t.end} <= self.special_ids.keys()]
        if not templates:
            hint = "chat needs an instruct model; use harken generate"
            raise BadInput(f"{run.path}: the tokenizer has no chat tokens; {hint}")
        self.template = templates[0]
        self.messages: list[tuple[str, str]] = [("system", system)] if system else []

    def send(self, text: str) -> Iterator[str]:
        """Add a user message and stream the reply."""
        self.messages.append(("user", text))
        ids, reply, tokenizer = self._prompt_ids(), "", self.run.tokenizer
        end_ids = {self.special_ids[self.template.end], tokenizer.end_id}
        banned_ids = [i for i in tokenizer.special_ids if i not in end_ids]
        decode = tokenizer.stream_decoder()
        for token in ids:
            decode(token)
        generate, n = self.run.text_generator.generate, self.max_new_tokens
        for (token,) in generate([ids], n, self.sampling, seed=self.seed, banned_ids=banned_ids):
            if int(token) in end_ids:
                break
            piece = decode(int(token)) if reply else decode(int(token)).lstrip()
            reply += piece
            yield piece
        self.messages.append((self.template.assistant, reply.strip()))

    def _prompt_ids(self) -> list[int]:
        """The conversation as ids, up to the start of the reply, without the oldest turns that do not fit."""
        limit = (self.run.model.context or 10**9) - 1
        prompt_limit, n_tokens = max(limit - self.max_new_tokens, limit // 2), len(self._conversation_ids())
        while len(ids := self._conversation_ids()) > prompt_limit:
            oldest = 1 if self.messages[0][0] == "system" else 0
            if len(self.messages) <= oldest + 1:
                raise BadInput(f"message: has {len(ids)} tokens; this model reads {limit}; shorten the message")
            del self.messages[oldest]
        words = {"inputs": "conversations", "consequence": "shortened: the oldest messages are no longer read"}
        report_overflow(self.listen, Overflow.of([n_tokens], prompt_limit, **words))
        return ids

    def _conversation_ids(self) -> list[int]:
        template, turns = self.template, list(self.messages)
        if not template.system and turns[0][0] == "system":
            turns[:2] = [(turns[1][0], f"{turns[0][1]}\n\n{turns[1][1]}")]
        ids = list(self.run.tokenizer.prefix_ids)
        for role, text in turns:
            ids += [*self._open_turn(role, text.strip()), self.special_ids[template.end], *self._plain(template.suffix)]
        return ids + self._open_turn(template.assistant, "")

    def _open_turn(self, role: str, text: str) -> list[int]:
        """A turn without its end token."""
        template, start = self.template, [self.special_ids[self.template.start]]
        if not template.header_end:
            return start + self._plain(f"{role}{template.separator}{text}")
        header_end = [self.special_ids[template.header_end]]
        return start + self._plain(role) + header_end + self._plain(template.separator + text)

    def _plain(self, text: str) -> list[int]:
        """The ids of a text in which every special token is split into ordinary characters."""
        pieces, rest = [], text
        while positions := [rest.index(token) for token in self.special_ids if token in rest]:
            pieces.append(rest[: min(positions) + 1])
            rest = rest[min(positions) + 1 :]
        return [int(i) for piece in (*pieces, rest) if piece for i in self.run.tokenizer.encode(piece)]

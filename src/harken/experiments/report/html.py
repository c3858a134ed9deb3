"""HTML elements with escaped text."""

import html

CONTROL_PICTURES = {c: 0x2400 + c for c in range(32) if chr(c) not in "\t\n"}  # make control characters visible
CONTROL_PICTURES |= dict.fromkeys((*range(127, 160), *range(0xD800, 0xE000)), 0xFFFD)


class Html(str):
    """Text that is already HTML. Anything else is escaped when it is put into an element."""


def tag(name: str, *content: object, **attributes: object) -> Html:
    """One element. `class_` is written class, `aria_label` aria-label; None is omitted, lists are joined."""
    pairs = ((key.rstrip("_").replace("_", "-"), value) for key, value in attributes.items() if value is not None)
    start = "".join(f' {key}="{escape(value)}"' for key, value in pairs)
    return Html(f"<{name}{start}>{escape(content)}</{name}>")


def escape(content: object) -> str:
    """The content as HTML. Control characters become visible; what UTF-8 cannot encode is replaced."""
    if isinstance(content, Html):
        return content
    if isinstance(content, list | tuple):
        return "".join(map(escape, content))
    return "" if content is None else html.escape(str(content).translate(CONTROL_PICTURES))

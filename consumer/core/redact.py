"""Keeps credentials out of what is logged, stored or shown: rather too much than too little."""

import re

# User and password of a URL, up to the last @ of the word; or, where a password holds blanks, up to
# the next @ of the line. The bounds keep the time linear in the text, whatever it is.
_IN_WORD = re.compile(r"(?<=://)[^\s:/@]{0,1000}:\S{0,1000}@")
_IN_LINE = re.compile(r"(?<=://)[^\s:/@]{0,1000}:[^\n@]{0,100}@")
_NAMED = re.compile(r"""(?i)((?:password|passwd|secret|token)["']?\s?[=:]\s?["']?)[^\s&'",)]+""")


def redact(text: str) -> str:
    """`text` without the user and password of URLs in it, and without `password=…` values."""
    return _NAMED.sub(r"\1***", _IN_LINE.sub("***@", _IN_WORD.sub("***@", text)))

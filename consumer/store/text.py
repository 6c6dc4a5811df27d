"""Text on its way into Postgres, which refuses NUL and lone surrogates."""

MAX_NOTE_BYTES = 16 * 1024
_CUT = " … (cut)"


def storable(text: str) -> str:
    """`text` with NUL and lone surrogates written as escapes; unchanged where it has none."""
    if "\0" in text:
        text = text.replace("\0", "\\x00")
    if not text.isascii() and any("\ud800" <= c <= "\udfff" for c in text):
        text = text.encode("utf-8", "backslashreplace").decode()
    return text


def note(text: str, limit_bytes: int = MAX_NOTE_BYTES) -> str:
    """Storable text of at most `limit_bytes`; what is cut, is cut between characters and marked."""
    # No character is shorter than a byte, so what lies beyond the limit need not be looked at.
    whole = storable(text[:limit_bytes + 1]).encode()
    if len(whole) <= limit_bytes:
        return whole.decode()
    return whole[:limit_bytes - len(_CUT.encode())].decode("utf-8", "ignore") + _CUT

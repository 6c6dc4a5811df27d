"""Durations as people read them."""

from datetime import timedelta

_UNITS = (("d", 86_400), ("h", 3600), ("min", 60), ("s", 1))


def in_words(duration: timedelta) -> str:
    """`duration` in its two largest units, at least to the second: `1 h 30 min`, `2.5 s`.

    Rounded to milliseconds below a minute, to seconds above it.
    """
    seconds = duration.total_seconds()
    if abs(seconds) < 1:
        return f"{seconds * 1000:g} ms" if seconds else "0 s"
    if abs(seconds) < 60:
        return f"{round(seconds, 3):g} s"
    rest, parts = round(seconds), []
    for unit, size in _UNITS:
        count, rest = divmod(rest, size)
        if count:
            parts.append(f"{count} {unit}")
        elif parts:
            break
    return " ".join(parts[:2])

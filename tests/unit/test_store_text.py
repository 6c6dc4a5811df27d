"""Text that Postgres can hold, whatever it was."""

import pytest

from consumer.store.text import MAX_NOTE_BYTES, note, storable


@pytest.mark.parametrize(("text", "stored"), [
    ("", ""), ("plain", "plain"), ("é\U0001f602", "é\U0001f602"), ("a\0b", "a\\x00b"),
    ("a\ud800b", "a\\ud800b"), ("\0\udfff", "\\x00\\udfff"),
])
def test_only_what_cannot_be_stored_is_escaped(text: str, stored: str) -> None:
    assert storable(text) == note(text) == stored


@pytest.mark.parametrize("text", [
    "x" * (MAX_NOTE_BYTES + 1), "é" * MAX_NOTE_BYTES, "\U0001f602" * 5_000, "\ud800" * 20_000,
    "a" + "\U0001f602" * 5_000, "\0" * MAX_NOTE_BYTES,
])
def test_what_is_too_long_is_cut_between_characters_and_marked(text: str) -> None:
    cut = note(text)
    assert len(cut.encode()) <= MAX_NOTE_BYTES
    assert len(cut.encode()) > MAX_NOTE_BYTES - 20
    assert cut.endswith(" … (cut)")
    assert storable(text).startswith(cut.removesuffix(" … (cut)"))


def test_what_fits_exactly_is_not_cut() -> None:
    assert note("x" * MAX_NOTE_BYTES) == "x" * MAX_NOTE_BYTES

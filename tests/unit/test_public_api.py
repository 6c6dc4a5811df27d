"""What the package promises by name."""

import inspect
import re
from pathlib import Path
from typing import Any

import pytest

import consumer
from consumer import errors, ports


def test_all_is_sorted_and_holds_every_public_name() -> None:
    """What is imported at once; the others come when they are asked for."""
    public = {name for name, value in vars(consumer).items()
              if str(getattr(value, "__module__", "")).startswith("consumer.")}
    assert consumer.__all__ == sorted(set(consumer.__all__))
    late = set(consumer.__all__) - public
    assert public | late == set(consumer.__all__)
    assert late <= {"Outbox"}
    namespace: dict[str, Any] = {}
    exec("from consumer import *", namespace)
    assert set(consumer.__all__) <= set(namespace)


def test_another_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="Nonsense"):
        consumer.Nonsense  # noqa: B018


@pytest.mark.parametrize("name", consumer.__all__)
def test_every_public_name_is_documented_and_lives_in_the_package(name: str) -> None:
    value: Any = getattr(consumer, name)
    assert inspect.getdoc(value)
    assert value.__module__.startswith("consumer.")


PROJECT = Path(__file__).parents[2]
SHOWN = sorted([PROJECT / "README.md", *PROJECT.glob("docs/*.md"),
                *PROJECT.glob("examples/**/*.py")])


def names_imported(text: str) -> set[str]:
    """What a text imports from the package itself, on one line or in parentheses."""
    found = re.findall(r"^from consumer import (?:\(([^)]*)\)|(.*))$", text, re.MULTILINE)
    return {name.strip() for lists in found for name in "".join(lists).split(",") if name.strip()}


def test_documents_and_examples_use_public_names_only() -> None:
    used = {path.relative_to(PROJECT).as_posix(): names_imported(path.read_text("utf-8"))
            for path in SHOWN}
    assert {"App", "Command", "Handler"} <= used["README.md"]
    for path, names in used.items():
        assert names <= set(consumer.__all__), path


def drawn_tree() -> dict[str, str | None]:
    """(name, parent) of each class in the tree of the module's docstring."""
    parents: dict[str, str | None] = {}
    path: list[str] = []
    for line in inspect.cleandoc(errors.__doc__ or "").splitlines()[1:]:
        found = re.match(r"(?P<bars>[│├└─ ]*)(?P<name>[A-Z]\w+)", line)
        if found is None:
            continue
        depth = len(found["bars"]) // 4
        del path[depth:]
        parents[found["name"]] = path[-1] if path else None
        path.append(found["name"])
    return parents


def test_the_error_tree_is_drawn_as_it_is() -> None:
    classes = {name: value for name, value in vars(errors).items()
               if inspect.isclass(value) and value.__module__ == errors.__name__}
    real = {name: next((base.__name__ for base in value.__bases__ if base is not Exception), None)
            for name, value in classes.items()}
    assert drawn_tree() == real
    assert real["ConsumerError"] is None
    assert all(issubclass(value, errors.ConsumerError) for value in classes.values())


PROTOCOLS = {name: value for name, value in vars(ports).items()
             if getattr(value, "_is_protocol", False) and value.__module__ == ports.__name__}


@pytest.mark.parametrize("name", sorted(PROTOCOLS))
def test_a_port_has_at_most_six_methods_all_documented(name: str) -> None:
    members = [value for member, value in vars(PROTOCOLS[name]).items()
               if not member.startswith("_")]
    methods = [member for member in members if inspect.isfunction(member)]
    assert 0 < len(methods) <= 6 or all(isinstance(member, property) for member in members)
    for member in members:
        assert inspect.getdoc(member)


def test_the_ports_are_there() -> None:
    assert set(PROTOCOLS) >= {"Broker", "Clock", "OutboxStore", "Publisher", "Settlement", "Store",
                              "Subscription", "Transaction"}

"""Recursion without Python's stack: a function on a node is a generator that yields its sub-walks.

    def size(node):
        total = 1
        for child in node.children:
            total += yield size(child)
        return total

    run(size(root))

A graph may be as deep as the operator allows, and may be walked from any depth of the caller's stack.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import Any, TypeVar

T = TypeVar("T")

Walk = Generator[Any, Any, T]
"""A generator that yields sub-walks, is sent their results, and returns a T."""


def run(walk: Walk[T]) -> T:
    """The result of `walk`. An exception of a sub-walk ends the whole walk."""
    stack: list[Walk[Any]] = [walk]
    value: Any = None
    while stack:
        try:
            child = stack[-1].send(value)
        except StopIteration as stop:
            stack.pop()
            value = stop.value
        else:
            stack.append(child)
            value = None
    result: T = value
    return result

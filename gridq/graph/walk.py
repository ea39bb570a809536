"""Recursion without Python's stack: a recursive function is a generator that yields its recursive calls.

    def size(node):
        total = 1
        for child in node.children:
            total += yield size(child)
        return total

    run(size(root))

So a graph may be as deep as the operator allows, whatever the depth of the caller's stack.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import Any, TypeVar

T = TypeVar("T")

Walk = Generator[Any, Any, T]
"""A generator that yields walks, is sent their results, and returns a T."""


def run(walk: Walk[T]) -> T:
    """Run `walk` and return its result; an exception in a nested walk ends the whole walk."""
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

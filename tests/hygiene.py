"""The rule that no key lives for ever, as a check: the product's own audit."""

from gridq.views.audit import find_keys_without_ttl as keys_without_ttl

__all__ = ["keys_without_ttl"]

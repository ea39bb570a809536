"""What must hold between any two scripts, read from the server alone: the product's own audit."""

from gridq.views.audit import find_breaches as broken

__all__ = ["broken"]

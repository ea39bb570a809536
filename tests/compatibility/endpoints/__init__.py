"""Strict local servers of the vendors' APIs, and the one model behind all of them."""

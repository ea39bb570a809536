"""The profiles that come with gridq, one package a kind, each with the same module names."""

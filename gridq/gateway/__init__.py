"""The grid over HTTP: one process, one door; several side by side are equal and keep nothing of their own."""

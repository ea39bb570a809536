"""The owner first: when a seat of this machine is lent to the grid, and when its owner keeps it."""

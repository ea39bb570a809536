"""The model endpoints of a chaos grid: a process of their own whose answers fail as a plan says, the clients
that send requests through the gateways, and the rules that compare what both saw with the ledger.
"""

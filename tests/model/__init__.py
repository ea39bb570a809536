"""What the model of the protocol is made of: see tests/integration/test_protocol_model.py."""

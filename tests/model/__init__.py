"""The parts of the protocol's model, which tests/integration/test_protocol_model.py runs."""

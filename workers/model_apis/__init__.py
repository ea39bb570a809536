"""What the profiles share: the `Llm` demand, the model catalogue, the stages of a model, the OpenAI-shaped
API format.
"""

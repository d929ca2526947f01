"""A stand-in for the engine's API: answers like vLLM, generates nothing, and can be told to misbehave."""

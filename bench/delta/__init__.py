"""How much of SmolLM2's weights a step changes, and what it takes to send them whole, or only what changed."""

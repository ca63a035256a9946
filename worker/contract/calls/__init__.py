"""Provider calls: what they may take, what they took, and how the models are."""

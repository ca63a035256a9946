"""Chat completions over OpenAI's wire format: our own client, because its stream is the hot path."""

"""What was said: messages in sections, and which of them a model sees."""

"""The arithmetic of a training loop in Paddle."""

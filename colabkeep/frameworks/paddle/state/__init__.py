"""State of Paddle's objects, out and in, without pickle."""

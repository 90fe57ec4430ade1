"""State of torch objects, out and in, without pickle."""

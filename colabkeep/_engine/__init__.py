"""The engine: state to bytes to a committed checkpoint, and back. Private; it knows promises, never parts."""

"""What the adapters share: trees of plain values, random streams, positions in anything that can be iterated."""

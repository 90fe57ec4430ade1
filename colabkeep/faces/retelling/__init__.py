"""The story of a run in four tongues: text, HTML, a plot, and a record for machines. Each is one pure function."""

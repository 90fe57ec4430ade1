"""Kaggle: what it is (`platform`), where earlier outputs lie (`inputs`), and the user's secrets (`secrets`)."""

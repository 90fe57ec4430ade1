"""Kaggle: what it is and where earlier outputs lie (`platform`), and the user's secrets (`secrets`)."""

"""Kaggle on loopback, as far as kagglehub sees it: `FakeKaggle` for a test, `state` for what it knows.

The shapes are those of kagglesdk 0.1.37, read in its source and in the stub servers of kagglehub's own tests; the
real client parses the answers in every test. What Kaggle does that no document tells is said at each knob of `state`.
"""

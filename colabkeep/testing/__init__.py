"""The public test kit: contract suites to prove an implementation with, faults, and a clock that stands still.

Everything here is for tests, of colabkeep and of parts that others write for it; the product never imports it.
`stores`, `frameworks` and `platforms` need pytest.
"""

"""State to bytes to a committed checkpoint, and back. It knows the promises of stores and frameworks, never one of
them.

Whatever asks the store may raise its `StoreError`, which is not said of each function.
"""

"""Keep the folder that any program writes: whole versions of it, verified, put back on the next machine."""

"""Programs that use colabkeep as anybody would, by its public functions."""

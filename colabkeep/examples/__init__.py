"""Programs that use colabkeep as anybody would, through its front door."""

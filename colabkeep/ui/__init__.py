"""What people see: thin, replaceable, unaware of each other. They read events and manifests."""

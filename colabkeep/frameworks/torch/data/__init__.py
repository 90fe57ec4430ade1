"""The order of data in torch: loaders adapted, seeded and positioned."""

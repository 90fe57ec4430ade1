"""The order of data in Paddle: loaders adapted, seeded and positioned."""

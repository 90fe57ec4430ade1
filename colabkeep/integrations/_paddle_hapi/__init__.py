"""The parts of `colabkeep.integrations.paddle_hapi`."""

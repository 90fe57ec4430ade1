"""One life of the machine under a run: wiring the parts to the engine, and the loop on top."""

"""A simulated CUDA device for the CPU build of torch. README.md beside this says what it shows and what it cannot."""

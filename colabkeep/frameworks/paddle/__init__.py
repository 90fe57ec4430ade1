"""PaddlePaddle: state, data order and the arithmetic of a training loop."""

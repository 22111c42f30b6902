"""What travels between server and worker: a model, an update, and frozen tensors once."""

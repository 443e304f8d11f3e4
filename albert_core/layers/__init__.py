"""What the model is made of: attention, dense layers, activation functions."""

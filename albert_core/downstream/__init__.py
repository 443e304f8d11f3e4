"""The parts of fine-tuning: settings, loop, the model as a folder, its predictions."""

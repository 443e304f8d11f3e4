"""A pretrained model and a task to a fine-tuned model, its scores and predictions."""

"""Model folders, and weights to and from Hugging Face and the TF release."""

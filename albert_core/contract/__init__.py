"""What text and training agree on: records, tokenizer, manifests, seeds, storage. No torch."""

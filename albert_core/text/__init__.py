"""What text and training agree on: records, tokenizer, masking, seeds. No torch."""

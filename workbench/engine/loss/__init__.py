"""A language model's loss in chunks of tokens, without its logits as a whole."""

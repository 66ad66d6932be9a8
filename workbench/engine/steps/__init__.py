"""One optimizer step: what is done with its gradients, its update, its verdict, and what it came to."""

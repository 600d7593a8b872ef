"""Parts, a loss and rules for transformer_jax, by somebody else."""

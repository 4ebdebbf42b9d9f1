"""JAX: models, sharding, recipes, the trainer, evaluation."""

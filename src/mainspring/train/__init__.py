"""JAX: recipes, the flow-matching policy, sharding, the trainer, evaluation.

Nothing is imported here: whoever wants a recipe's numbers alone must not pay for JAX.
"""

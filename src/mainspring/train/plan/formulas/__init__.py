"""What a policy is made of, what of it lies on a device, and what the device does with it, as formulas without JAX."""

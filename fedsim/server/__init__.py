"""A step: parameters, gradient history, Gram products, the protocol of a rule."""

"""Models by name: one module each, whose factory takes the shape of a sample and the number of classes.

    from fedsim.training.network import build_network
    network = build_network("mlp", {"hidden": [200, 200]}, in_shape=(1, 28, 28), n_classes=10)
    network.P                    # 199210

A factory is `name(*, in_shape, n_classes, <options>) -> torch.nn.Module`; it maps float32 [B, *in_shape] to
logits [B, n_classes], draws its initial values from torch's default generator, and keeps no running
statistics.
"""

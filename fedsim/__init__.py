"""fedsim: an asynchronous, actor-based federated-learning simulator with realistic client dynamics.

    import fedsim

    results = fedsim.simulate("examples/quickstart.toml", workers=0)
    print(results[0].folder, results[0].digest)

`__init__.pyi` lists the public interface, which docs/api.md describes. Names are imported when first used, so
`import fedsim` costs nothing.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
__version__ = "0.1.0"

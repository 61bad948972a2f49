"""fedsim simulates federated learning whose clients go offline, straggle or fail, and measures its fairness.

    import fedsim

    results = fedsim.simulate("examples/quickstart.toml", workers=0)
    print(results[0].folder, results[0].digest)

`__init__.pyi` lists the public interface, which docs/api.md describes. Names are imported when first used, so
`import fedsim` costs nothing.
"""

import lazy_loader

_lazy, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
__version__ = "0.1.0"


def __getattr__(name: str) -> object:
    if name == "run":
        raise AttributeError("module 'fedsim' has no attribute 'run'; fedsim.simulate runs configurations")
    return _lazy(name)

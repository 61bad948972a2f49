from __future__ import annotations

import math
import subprocess
import sys
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.func import functional_call
from torch.utils.flop_counter import FlopCounterMode

from fedsim import plugins
from fedsim.common.errors import ConfigError
from fedsim.training.network import Network, build_network

ROOT = Path(__file__).resolve().parents[2]

VALID: dict[str, Any] = {"padding": "valid"}
FIVE_LAYERS = {"channels": [64, 64], "padding": "valid", "hidden": [384, 192]}
MNIST, CIFAR = (1, 28, 28), (3, 32, 32)

# name, options, shape of a sample, classes, parameters, blocks
PUBLISHED = [
    ("softmax", {}, (99,), 2, 200, 1),  # Adult, q-FFL
    ("softmax", {}, (60,), 10, 610, 1),  # synthetic, q-FFL
    ("softmax", {}, MNIST, 3, 2_355, 1),  # Fashion-MNIST with three classes, q-FFL and FedFV
    ("mlp", {}, MNIST, 10, 199_210, 3),  # Fashion-MNIST, FedMDFG and FedLF
    ("mlp", {}, CIFAR, 10, 656_810, 3),  # CIFAR-10, FedFV
    ("cnn", {}, MNIST, 10, 1_663_370, 4),  # MNIST, FedAvg and FedMDFG
    ("cnn", VALID | {"relu": False}, MNIST, 62, 608_702, 4),  # MNIST, FedFV: its code has 62 outputs
    ("cnn", VALID | {"channels": [6, 16], "hidden": [120, 84]}, CIFAR, 10, 62_006, 5),  # LeNet, FedMDFG
    ("cnn", FIVE_LAYERS | {"norm": "response"}, CIFAR, 10, 797_962, 5),  # CIFAR-10, Fed-MGDA+
    ("cnn", FIVE_LAYERS | {"dropout": [0, 0.2, 0.5]}, CIFAR, 10, 797_962, 5),  # CIFAR-10, FedMDFG and FedLF
    ("cnn", VALID | {"channels": [10, 20], "hidden": [50], "channel_dropout": 0.5}, MNIST, 10, 21_840, 4),
    ("cnn", VALID | {"kernel": 3, "pool": "last", "hidden": [128]}, MNIST, 62, 1_206_590, 4),  # FEMNIST
    ("nfresnet", {}, CIFAR, 100, 189_844, 17),  # CIFAR-100, FedLF
    ("lstm", {}, (80,), 80, 640 + 272_384 + 526_336 + 20_560, 4),  # Shakespeare, q-FFL
]
SMALL = [
    ("softmax", {}, (1, 8, 8)),
    ("softmax", {"bias": False, "zero_init": True}, (60,)),
    ("softmax", {"doubled_softmax": True}, (60,)),
    ("mlp", {"hidden": []}, (7,)),
    ("mlp", {"hidden": [5], "doubled_softmax": True}, (7,)),
    ("mlp", {"hidden": [5, 4, 3]}, (1, 8, 8)),
    ("cnn", {"channels": [4, 6], "hidden": [8]}, (1, 8, 8)),
    ("cnn", {"channels": [4, 6], "hidden": [], "norm": "group", "groups": 4}, (1, 8, 8)),
    ("cnn", {"channels": [], "hidden": [5]}, (2, 3, 3)),
    ("cnn", {"channels": [4, 6], "hidden": [8], "kernel": 3, "pool": "last", "relu": False}, (1, 8, 8)),
    ("cnn", {"channels": [4, 6], "hidden": [8], "norm": "response"}, (1, 8, 8)),
    ("nfresnet", {"stem": 4, "stages": [4, 6], "blocks": 2}, (1, 8, 8)),
    ("lstm", {"embedding": 3, "hidden": [5, 4]}, (7,)),
]


@pytest.mark.parametrize("name", ["softmax", "mlp", "cnn"])
def test_a_doubled_softmax_gives_probabilities_to_the_cross_entropy(name: str) -> None:
    plain, doubled = (
        build_network(name, options, (1, 8, 8), 3) for options in ({}, {"doubled_softmax": True})
    )
    assert (plain.P, plain.slots) == (doubled.P, doubled.slots)
    start = plain.initial(1)
    assert torch.equal(start, doubled.initial(1))
    x = torch.randn(5, 1, 8, 8, generator=torch.Generator().manual_seed(0))
    logits, outputs = (n.load(start).eval()(x) for n in (plain, doubled))
    assert torch.allclose(outputs, logits.exp() / logits.exp().sum(1, keepdim=True))
    assert torch.equal(outputs.argmax(1), logits.argmax(1))
    labels = torch.tensor([0, 1, 2, 0, 1])
    twice = -(outputs - outputs.exp().sum(1, keepdim=True).log())[torch.arange(5), labels]
    assert torch.allclose(torch.nn.functional.cross_entropy(outputs, labels, reduction="none"), twice)


@pytest.fixture(params=SMALL, ids=str)
def network(request: pytest.FixtureRequest) -> Network:
    name, options, in_shape = request.param
    return build_network(name, options, in_shape, 10)


def inputs(network: Network, n: int) -> torch.Tensor:
    draws = torch.Generator().manual_seed(0)
    if network.name == "lstm":
        return torch.randint(network.n_classes, (n, *network.in_shape), generator=draws).float()
    return torch.randn(n, *network.in_shape, generator=draws)


def test_every_model_is_covered_here() -> None:
    assert {name for name, *_ in SMALL} == set(plugins.names("model"))


@pytest.mark.parametrize(("name", "options", "in_shape", "classes", "parameters", "blocks"), PUBLISHED)
def test_published_models_have_their_published_sizes(
    name: str, options: dict[str, Any], in_shape: tuple[int, ...], classes: int, parameters: int, blocks: int
) -> None:
    network = build_network(name, options, in_shape, classes)
    assert parameters == network.P
    assert blocks == len(network.blocks)


def test_cnn_blocks_are_those_of_the_paper() -> None:
    """Fed-MGDA+ lists 4864, 102464, 614784, 73920 and 1930 parameters per layer on CIFAR-10."""
    network = build_network("cnn", FIVE_LAYERS | {"norm": "response"}, CIFAR, 10)
    assert [b - a for a, b in network.blocks] == [4864, 102464, 614784, 73920, 1930]
    assert network.block_names == ["conv1", "conv2", "fc1", "fc2", "out"]


@pytest.mark.parametrize("side", [8, 28, 32])
@pytest.mark.parametrize("norm", ["none", "group"])
def test_the_default_cnn_takes_all_usual_images(side: int, norm: str) -> None:
    network = build_network("cnn", {"norm": norm}, (3, side, side), 7)
    assert network.module(inputs(network, 2)).shape == (2, 7)


def test_blocks_cover_the_columns_and_join_weight_and_bias(network: Network) -> None:
    ends = [0, *(stop for _, stop in network.blocks)]
    assert network.blocks == list(pairwise(ends))
    assert ends[-1] == network.P == sum(p.numel() for p in network.module.parameters())
    owners = [n for n, m in network.module.named_modules() if list(m.parameters(recurse=False))]
    assert network.block_names == owners


def test_initial_is_a_function_of_the_seed_and_leaves_global_randomness_alone(network: Network) -> None:
    torch.manual_seed(7)
    before = torch.get_rng_state()
    first, again, other = (network.initial(seed) for seed in (1, 1, 2))
    rebuilt = build_network(network.name, network.options, network.in_shape, network.n_classes)
    assert torch.equal(torch.get_rng_state(), before)
    assert first.shape == (network.P,)
    assert first.dtype == torch.float32
    assert torch.equal(first, again)
    assert torch.equal(first, rebuilt.initial(1))
    if not network.options.get("zero_init"):
        assert not torch.equal(first, other)


def test_zero_init_is_zero_and_the_default_is_not() -> None:
    zero, usual = (build_network("softmax", {"zero_init": z}, (4,), 3).initial(0) for z in (True, False))
    assert not zero.any()
    assert usual.abs().max() <= 1 / math.sqrt(4)


def test_load_copies_nothing(network: Network) -> None:
    flat = network.initial(0)
    module = network.load(flat)
    assert module is network.module
    pointers = {p.untyped_storage().data_ptr() for p in module.parameters()}
    assert pointers == {flat.untyped_storage().data_ptr()}
    x = inputs(network, 3)
    before = module(x)
    flat += 0.5
    assert not torch.equal(module(x), before)
    assert torch.equal(torch.cat([p.detach().reshape(-1) for p in module.parameters()]), flat)


def test_views_and_load_agree_also_under_vmap(network: Network) -> None:
    if network.name == "lstm":
        pytest.skip("torch.func cannot map over recurrent layers")
    stacked = torch.stack([network.initial(seed) for seed in range(3)])
    x = inputs(network, 4)
    batched = torch.vmap(lambda p: functional_call(network.module, p, (x,)))(network.views(stacked))
    views = network.views(stacked)
    assert all(v.untyped_storage().data_ptr() == stacked.untyped_storage().data_ptr() for v in views.values())
    for k in range(3):
        torch.testing.assert_close(network.load(stacked[k].clone())(x), batched[k], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("bad", [torch.zeros(3), torch.zeros(1, 650), torch.zeros(650, dtype=torch.float64)])
def test_load_refuses_another_shape_or_type(bad: torch.Tensor) -> None:
    network = build_network("softmax", {}, (64,), 10)
    with pytest.raises(ValueError, match=r"expected flat parameters \[650\] torch.float32, found"):
        network.load(bad)


@pytest.mark.parametrize(("name", "options", "in_shape"), SMALL, ids=str)
def test_flops_equal_those_of_torch(name: str, options: dict[str, Any], in_shape: tuple[int, ...]) -> None:
    """torch counts products only in its matrix and convolution kernels, so GroupNorm is compared apart."""
    if name == "lstm":
        pytest.skip("torch does not count recurrent layers")
    network = build_network(name, options, in_shape, 10)
    with FlopCounterMode(display=False) as counter:
        network.module(torch.zeros(1, *in_shape))
    norms = sum(p.numel() for n, p in network.module.named_parameters() if "norm" in n)
    assert network.flops == counter.get_total_flops() + 2 * norms


def test_flops_of_a_recurrent_layer_are_those_of_its_products_at_every_character() -> None:
    network = build_network("lstm", {"embedding": 3, "hidden": [5, 4]}, (7,), 11)
    assert network.flops == 7 * 2 * (4 * 5 * (3 + 5) + 4 * 4 * (5 + 4)) + 2 * 4 * 11


def test_lstm_looks_at_every_character_and_at_its_order() -> None:
    network = build_network("lstm", {"embedding": 3, "hidden": [5, 4]}, (7,), 11)
    network.load(network.initial(0))
    text = torch.tensor([[1.0, 2, 3, 4, 5, 6, 7]])
    first = text.clone()
    first[0, 0] = 9
    outputs = [network.module(x) for x in (text, first, text.flip(1))]
    assert not torch.equal(outputs[0], outputs[1])
    assert not torch.equal(outputs[0], outputs[2])


def test_lstm_says_which_characters_it_does_not_know() -> None:
    network = build_network("lstm", {"hidden": [3], "alphabet": 7}, (4,), 2)
    with pytest.raises(ConfigError, match=r"numbers of characters, from 0 to 6, found -1 to 7: set alphabet"):
        network.module(torch.tensor([[0.0, 7.0, -1.0, 2.0]]))


def test_lstm_takes_other_weights_by_name() -> None:
    network = build_network("lstm", {"embedding": 3, "hidden": [5]}, (7,), 11)
    one, other = network.initial(0), network.initial(1)
    x = inputs(network, 2)
    expected = network.load(other)(x).detach().clone()
    assert torch.equal(functional_call(network.load(one), network.views(other), (x,)), expected)
    assert not torch.equal(network.module(x), expected)


def test_dropout_and_response_normalisation_stand_where_the_papers_have_them() -> None:
    def parts(**options: Any) -> list[str]:
        network = build_network(
            "cnn", {"channels": [4, 4], "hidden": [6, 5], "kernel": 3} | options, (1, 16, 16), 3
        )
        return [name for name, _ in network.module.named_children()]

    assert parts(norm="response")[:8] == [
        *("conv1", "relu_conv1", "pool1", "norm1"),
        *("conv2", "relu_conv2", "norm2", "pool2"),
    ]
    dense = ["fc1", "relu_fc1", "dropout2", "fc2", "relu_fc2", "dropout3", "out"]
    assert parts(dropout=[0, 0.2, 0.5])[7:] == dense
    assert parts(channel_dropout=0.5, dropout=[0.3])[6:9] == ["channel_dropout", "flatten", "dropout1"]
    assert [n for n in parts(pool="last", relu=False) if "fc" not in n] == [
        "conv1",
        "conv2",
        "pool2",
        "flatten",
        "out",
    ]


def test_nfresnet_keeps_the_variance_of_its_activations() -> None:
    network = build_network("nfresnet", {}, CIFAR, 10)
    found = inputs(network, 32)
    with torch.inference_mode():
        spread = {}
        for name, part in network.load(network.initial(0)).named_children():
            found = part(found)
            if name.startswith("stage"):
                spread[name] = float(found.std())
    assert len(spread) > 2
    assert all(0.8 < std < 1.3 for std in spread.values()), spread


def test_nfresnet_does_not_feel_the_scale_of_its_filters() -> None:
    network = build_network("nfresnet", {"stem": 4, "stages": [4, 6]}, (1, 8, 8), 3)
    flat = network.initial(0)
    x = inputs(network, 2)
    before = network.load(flat)(x)
    with torch.no_grad():
        network.module.get_submodule("stage2_1.conv1").get_parameter("weight").mul_(3).add_(0.7)
    torch.testing.assert_close(network.module(x), before, rtol=1e-3, atol=1e-4)


@settings(max_examples=50, deadline=None)
@given(width=st.integers(1, 64), groups=st.integers(1, 32))
def test_group_norm_takes_any_width(width: int, groups: int) -> None:
    options = {"channels": [width], "hidden": [], "kernel": 3, "norm": "group", "groups": groups}
    network = build_network("cnn", options, (1, 4, 4), 3)
    assert network.module(inputs(network, 2)).shape == (2, 3)


@pytest.mark.parametrize(
    ("name", "options", "in_shape", "message"),
    [
        ("cnn", {}, (60,), r"needs images \[channels, height, width\].*\(60,\)"),
        ("cnn", {"padding": "valid"}, (1, 8, 8), "8x8 is used up at convolution 2"),
        ("cnn", {"kernel": 4}, (1, 8, 8), "needs an odd kernel, found kernel = 4"),
        ("cnn", {"dropout": [0.1, 0.2, 0.3]}, (1, 8, 8), "3 chances of dropout for 2 linear layers"),
        ("cnn", {"dropout": [1.0]}, (1, 8, 8), r"option 'dropout.0'.*less than 1, found 1\.0"),
        ("lstm", {}, (1, 8, 8), r"needs sequences of characters \[length\].*\(1, 8, 8\)"),
        ("lstm", {"hidden": []}, (80,), "option 'hidden'.*at least 1 item"),
        ("nfresnet", {}, (60,), r"needs images \[channels, height, width\].*\(60,\)"),
        ("mlp", {"hidden": [10, 0]}, (60,), r"option 'hidden.1'.*greater than or equal to 1, found 0"),
        ("mlp", {"hiden": [10]}, (60,), "no option 'hiden'; did you mean 'hidden'"),
        ("ccn", {}, (60,), "there is no model 'ccn'; did you mean 'cnn'"),
    ],
)
def test_wrong_settings_are_explained(
    name: str, options: dict[str, Any], in_shape: tuple[int, ...], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        build_network(name, options, in_shape, 10)


OWN = """
import torch
from torch import nn

class Scale(nn.Module):
    def __init__(self):
        super().__init__()
        self.factor = nn.Parameter(torch.ones(()))
        self.out = nn.Linear(4, 3)
    def forward(self, x):
        return self.out(x) * self.factor

class Shift(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("mean", torch.full((4,), 0.5))
        self.out = nn.Linear(4, 3)
    def forward(self, x):
        return self.out(x - self.mean)

def scale(*, in_shape, n_classes): return Scale()
def shift(*, in_shape, n_classes): return Shift()
def batch_norm(*, in_shape, n_classes): return nn.Sequential(nn.BatchNorm1d(4), nn.Linear(4, 3))
def instance_norm(*, in_shape, n_classes):
    return nn.Sequential(nn.Unflatten(1, (4, 1)), nn.InstanceNorm1d(4, track_running_stats=True))
def batch_statistics(*, in_shape, n_classes):
    return nn.Sequential(nn.BatchNorm1d(4, track_running_stats=False), nn.Linear(4, 3))
def frozen(*, in_shape, n_classes): return nn.Linear(4, 3).requires_grad_(False)
def double(*, in_shape, n_classes): return nn.Linear(4, 3).double()
def empty(*, in_shape, n_classes): return nn.Flatten()
def narrow(*, in_shape, n_classes): return nn.Linear(4, 2)
def misfit(*, in_shape, n_classes): return nn.Linear(5, 3)
def none(*, in_shape, n_classes): return None
def lazy(*, in_shape, n_classes): return nn.Sequential(nn.Flatten(), nn.LazyLinear(3))
def spectral(*, in_shape, n_classes): return torch.nn.utils.parametrizations.spectral_norm(nn.Linear(4, 3))

class Counts(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("seen", torch.zeros(()))
        self.out = nn.Linear(4, 3)
    def forward(self, x):
        if self.training:
            self.seen += len(x)
        return self.out(x)

class Centred(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("mean", torch.zeros(4))
        self.out = nn.Linear(4, 3)
    def forward(self, x):
        if self.training:
            self.mean.mul_(0.9).add_(0.1 * x.mean(0).detach())
        return self.out(x - self.mean)

class InPlace(nn.Linear):
    def forward(self, x):
        x -= 0.5
        return super().forward(x)

class Detached(nn.Linear):
    def forward(self, x):
        return super().forward(x).detach()

class Drawing(nn.Linear):
    def forward(self, x):
        return nn.functional.dropout(super().forward(x), 0.5)

class Dropping(nn.Linear):
    def forward(self, x):
        return nn.functional.dropout(super().forward(x), 0.5, training=self.training)

def drawing(*, in_shape, n_classes): return Drawing(4, 3)
def dropping(*, in_shape, n_classes): return Dropping(4, 3)
def detached(*, in_shape, n_classes): return Detached(4, 3)
def in_place(*, in_shape, n_classes): return InPlace(4, 3)
def rectified(*, in_shape, n_classes):
    return nn.Sequential(nn.Flatten(), nn.ReLU(inplace=True), nn.Linear(4, 3))
def counts(*, in_shape, n_classes): return Counts()
def centred(*, in_shape, n_classes): return Centred()
def dropout(*, in_shape, n_classes): return nn.Sequential(nn.Dropout(0.5), nn.Linear(4, 3))
"""


@pytest.fixture
def own(tmp_path: Path) -> Path:
    file = tmp_path / "own.py"
    file.write_text(OWN)
    return file


@pytest.mark.parametrize(
    ("member", "message"),
    [
        ("batch_norm", "0 is a BatchNorm1d. Its running statistics .* undefined; use GroupNorm"),
        ("instance_norm", "1 is a InstanceNorm1d. Its running statistics"),
        (
            "batch_statistics",
            "0 is a BatchNorm1d. Without running statistics the accuracy of a sample depends",
        ),
        ("frozen", "found weight with torch.float32, requires_grad=False"),
        ("double", "found weight with torch.float64, requires_grad=True"),
        ("empty", "has no parameters"),
        ("narrow", r"expected logits \[1, 3\] for one sample, one for each class .*, found \[1, 2\]"),
        ("misfit", r"does not take samples of shape \(4,\)"),
        ("none", "expected a torch.nn.Module, found NoneType"),
        ("lazy", "1.weight has no shape before the first sample: use Linear in place of LazyLinear"),
        ("spectral", r"parametrizations.weight.0._[uv] changes while the model trains. It is state outside"),
        ("counts", "seen changes while the model trains"),
        ("centred", "mean changes while the model trains"),
        ("drawing", "draws at random in evaluation mode too.* pass training=self.training"),
        ("in_place", "changes its input samples in place: write x = x - mean"),
        ("rectified", "changes its input samples in place"),
        ("detached", r"logits that are differentiable .*: leave out detach\(\)"),
    ],
)
def test_models_that_cannot_be_federated_are_refused(own: Path, member: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        build_network(f"{own}:{member}", {}, (4,), 3)


def test_a_model_of_ones_own_may_draw_while_it_trains(own: Path) -> None:
    before = torch.get_rng_state()
    assert build_network(f"{own}:dropping", {}, (4,), 3).blocks == [(0, 15)]
    assert torch.equal(torch.get_rng_state(), before)


def test_a_model_of_ones_own_may_have_root_and_scalar_parameters(own: Path) -> None:
    network = build_network(f"{own}:scale", {}, (4,), 3)
    assert network.block_names == ["root", "out"]
    assert network.blocks == [(0, 1), (1, 16)]
    assert network.views(torch.zeros(2, 16))["factor"].shape == (2,)


def test_what_a_model_holds_besides_its_parameters_moves_with_them(own: Path) -> None:
    network = build_network(f"{own}:shift", {}, (4,), 3)
    assert network.load(network.initial(0))(torch.full((1, 4), 0.5)).shape == (1, 3)
    module = network.load(torch.zeros(network.P, device="meta"))
    assert {t.device.type for t in (*module.parameters(), *module.buffers())} == {"meta"}


def test_building_leaves_the_mode_and_global_randomness_alone(own: Path) -> None:
    torch.manual_seed(3)
    before = torch.get_rng_state()
    assert build_network(f"{own}:dropout", {}, (4,), 3).module.training
    assert torch.equal(torch.get_rng_state(), before)


def test_building_a_network_does_not_import_the_compiler() -> None:
    """torch._dynamo costs seconds at each start of a worker."""
    code = (
        "import sys; import fedsim.data.split; from fedsim.training.network import build_network;"
        "n = build_network('cnn', {'norm': 'group'}, (1, 8, 8), 10); n.load(n.initial(0));"
        "print([m for m in ('torch._dynamo', 'torchvision', 'sklearn') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize(
    ("name", "options", "in_shape", "widest"),
    [
        ("mlp", {"hidden": [200, 30]}, (60,), 2 * 200),  # ReLU
        ("cnn", {"channels": [4], "hidden": [8], "kernel": 3}, (2, 8, 8), 2 * 4 * 8 * 8),  # ReLU
        ("lstm", {"embedding": 3, "hidden": [5, 4]}, (7,), 7 * 5 + 2 * 7 * 4),  # the second recurrent layer
    ],
)
def test_the_widest_layer_is_known(
    name: str, options: dict[str, Any], in_shape: tuple[int, ...], widest: int
) -> None:
    assert build_network(name, options, in_shape, 3).widest == widest

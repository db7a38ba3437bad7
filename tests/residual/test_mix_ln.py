"""Mix-LN is Post-Norm below and Pre-Norm above, however it is stated."""

from __future__ import annotations

import pytest
import torch
from torch.testing import assert_close


@pytest.mark.parametrize(
    ("share", "num_sublayers", "post"),
    [(0.25, 24, 6), (0.25, 48, 12), (0.25, 8, 2), (0.25, 6, 0), (0.29, 200, 58), (0.5, 10, 4), (1.0, 8, 8)],
)
def test_the_boundary_is_the_floor_of_the_share_of_blocks(network, share, num_sublayers, post):
    net = network("mix_ln", {"post_share": share}, num_sublayers=num_sublayers, width=4)
    assert net.residual.post_sublayers == post


@pytest.mark.parametrize("post", [0, 1, 2, 4])
def test_mix_ln_is_its_equation(network, x, post):
    net = network("mix_ln", {"post_share": post / 4}, random=True)
    h = x
    for k, (norm, branch) in enumerate(zip(net.residual.norms, net.branches, strict=True)):
        h = norm(h + branch(h)) if k < 2 * post else h + branch(norm(h))
    assert_close(net(x), net.residual.final_norm(h), rtol=0, atol=1e-12)


@pytest.mark.parametrize("post", [1, 2, 3])
def test_mix_ln_is_the_mixture_of_its_two_halves(network, x, post):
    ours = network("mix_ln", {"post_share": post / 4}, random=True)
    segments = [["post_norm", post], ["pre_norm", 4 - post]]
    theirs = network("by_depth", {"segments": segments})
    given = dict(ours.residual.state_dict())
    renamed = {}
    for key in theirs.residual.state_dict():
        _, part, rest = key.split(".", 2)
        if rest.startswith("norms."):
            _, k, kind = rest.split(".")
            rest = f"norms.{int(k) + 2 * post * int(part)}.{kind}"
        renamed[key] = given.pop(rest)
    assert given == {}
    theirs.residual.load_state_dict(renamed)
    assert torch.equal(ours(x), theirs(x))


def test_a_share_of_none_is_pre_norm_and_of_all_is_post_norm_with_one_norm_more(network, x):
    assert torch.equal(network("mix_ln", {"post_share": 0})(x), network("pre_norm")(x))
    all_post = network("mix_ln", {"post_share": 1})
    assert torch.equal(all_post(x), all_post.residual.final_norm(network("post_norm")(x)))

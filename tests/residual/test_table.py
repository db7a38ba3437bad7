"""A name becomes a scheme, or one clear message."""

from __future__ import annotations

import pytest

from fints.residual import RESIDUALS, build_residual, make_norm, options_of


def build(name, options=None, **given):
    return build_residual(name, options, **{"width": 8, "num_sublayers": 2, **given})


def test_options_reach_the_scheme_and_have_the_documented_defaults():
    assert options_of("pre_norm") == {}
    assert options_of("static_hyper_connections") == {"num_streams": 4, "out_init_scale": "none"}
    assert options_of("dynamic_hyper_connections") == {
        "num_streams": 4,
        "tanh": True,
        "out_init_scale": "none",
    }
    residual = build("dynamic_hyper_connections", {"num_streams": 2, "tanh": False})
    assert (residual.num_streams, residual.tanh) == (2, False)
    assert build("static_hyper_connections").num_streams == 4


def test_a_misspelt_scheme_is_answered_with_the_nearest_and_the_list():
    with pytest.raises(ValueError, match="Did you mean 'pre_norm'") as error:
        build("prenorm")
    assert all(name in str(error.value) for name in RESIDUALS)


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("dynamic_hyper_connections", {"num_stream": 2}, "Did you mean 'num_streams'.*num_streams, tanh"),
        ("pre_norm", {"num_streams": 2}, "pre_norm has no options"),
        ("pre_norm", {"norm": "rms_norm"}, "unknown option 'norm'"),
        ("static_hyper_connections", {"tanh": True}, "unknown option 'tanh'"),
        ("static_hyper_connections", {"num_streams": "4"}, "whole number; got '4'"),
        ("static_hyper_connections", {"num_streams": 4.0}, "whole number; got 4.0"),
        ("static_hyper_connections", {"num_streams": True}, "whole number; got True"),
        ("static_hyper_connections", {"num_streams": 0}, "at least 1; got 0"),
        ("dynamic_hyper_connections", {"tanh": 1}, "true or false; got 1"),
        ("dynamic_hyper_connections", {"tanh": "yes"}, "true or false; got 'yes'"),
    ],
)
def test_a_wrong_option_is_one_clear_message(name, options, message):
    with pytest.raises(ValueError, match=message):
        build(name, options)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"width": 0}, "width must be a whole number of at least 1; got 0"),
        ({"num_sublayers": -1}, "num_sublayers .* got -1"),
        ({"first_layer": -1}, "first_layer .* got -1"),
        ({"norm": "layernorm"}, "Did you mean 'layer_norm'"),
        ({"norm_eps": -1.0}, "norm_eps must be at least 0; got -1.0"),
    ],
)
@pytest.mark.parametrize("name", list(RESIDUALS))
def test_a_wrong_size_or_norm_is_one_clear_message(name, given, message):
    with pytest.raises(ValueError, match=message):
        build(name, **given)


def test_a_norm_that_is_not_a_number_is_refused():
    with pytest.raises(ValueError, match="got nan"):
        make_norm("layer_norm", 8, float("nan"))

"""Mistakes in schemes of one stream, in what is calibrated, and in the value residual."""

from __future__ import annotations

from mutant import Mutant

SINGLE_STREAM = "fints/residual/single_stream.py"
SKIP_WEIGHTS = "fints/residual/skip_weights.py"
OUTPUT_NORMS = "fints/residual/output_norms.py"
SCALING = "fints/residual/layer_norm_scaling.py"
DEEP_NORM = "fints/residual/deep_norm.py"
RESI_DUAL = "fints/residual/resi_dual.py"
ADMIN = "fints/residual/admin.py"
RESCALED = "fints/residual/rescaled_norms.py"
BRANCHES = "fints/model/branches.py"
TRANSFORMER = "fints/model/transformer.py"
LOOP = "fints/training/loop.py"

TESTS = "tests/residual"
PRE_AND_POST = f"{TESTS}/test_single_stream.py"
WEIGHTS = f"{TESTS}/test_skip_weights.py"
BRANCH_SCALE = "tests/model/test_branch_scale.py"
BETA = f"{BRANCH_SCALE}::test_deep_norm_multiplies_values_outputs_and_feed_forward_by_beta_and_nothing_else"
OWN_SCALE = f"{BRANCH_SCALE}::test_the_family_that_sets_its_own_scale_is_the_papers"
VALUE_EQUATION = "tests/model/test_value_residual.py::test_the_network_is_its_equation"

MUTANTS = (
    Mutant(
        mistake="Pre-Norm: the skip is normed too",
        file=SINGLE_STREAM,
        old="        return state + branch(self.norms[layer](state))\n",
        new="        normed = self.norms[layer](state)\n        return normed + branch(normed)\n",
        test=f"{PRE_AND_POST}::test_pre_norm_is_its_equation",
    ),
    Mutant(
        mistake="Post-Norm: only the branch's output is normed",
        file=SINGLE_STREAM,
        old="        return self.norms[layer](state + branch(state))\n",
        new="        return state + self.norms[layer](branch(state))\n",
        test=f"{PRE_AND_POST}::test_post_norm_is_its_equation",
    ),
    Mutant(
        mistake="no skip: there is one after all",
        file=SINGLE_STREAM,
        old="        return branch(self.norms[layer](state)).to(state.dtype)\n",
        new="        return state + branch(self.norms[layer](state)).to(state.dtype)\n",
        test=f"{PRE_AND_POST}::test_no_skip_is_its_equation",
    ),
    Mutant(
        mistake="one stream: scales are decayed",
        file=SINGLE_STREAM,
        old="        return {name for name, _ in self.named_parameters()}\n",
        new='        return {name for name, _ in self.named_parameters() if "norm" in name}\n',
        test=f"{TESTS}/test_interface.py::test_only_dynamic_maps_decay",
    ),
    Mutant(
        mistake="learnable skip: the branch's weight stands on the skip too",
        file=SKIP_WEIGHTS,
        old="        return torch.addcmul(self.a[layer] * state, self.b[layer], y.to(state.dtype))\n",
        new="        return self.b[layer] * (self.a[layer] * state + y.to(state.dtype))\n",
        test=f"{WEIGHTS}::test_learnable_skip_is_its_equation",
    ),
    Mutant(
        mistake="learnable skip: a dropped branch also drops the weight of the skip",
        file=SKIP_WEIGHTS,
        old="        return torch.addcmul(self.a[layer] * state, self.b[layer], y.to(state.dtype))\n",
        new="        if not y.any():\n            return state\n"
        "        return torch.addcmul(self.a[layer] * state, self.b[layer], y.to(state.dtype))\n",
        test=f"{WEIGHTS}::test_a_silent_branch_leaves_the_weight_of_the_skip_at_work",
    ),
    Mutant(
        mistake="LayerScale: the start counts sublayers",
        file=SKIP_WEIGHTS,
        old="    num_blocks = (num_sublayers + 1) // 2\n",
        new="    num_blocks = num_sublayers\n",
        test=f"{WEIGHTS}::test_layer_scale_starts_smaller_the_deeper_the_network",
    ),
    Mutant(
        mistake="ReZero: the weight starts at 1",
        file=SKIP_WEIGHTS,
        old="nn.ParameterList(torch.tensor(0.0)",
        new="nn.ParameterList(torch.tensor(1.0)",
        test=f"{WEIGHTS}::test_with_a_weight_of_zero_the_trunk_is_the_embedding_bit_for_bit",
    ),
    Mutant(
        mistake="Sandwich and Peri-LN: the output norm stands after the addition",
        file=OUTPUT_NORMS,
        old="        return state + self.output_norms[layer](y.to(state.dtype))\n",
        new="        return self.output_norms[layer](state + y.to(state.dtype))\n",
        test=f"{TESTS}/test_output_norms.py::test_the_scale_of_a_branchs_last_map_does_not_matter",
    ),
    Mutant(
        mistake="Peri-LN: the embedding is not normed",
        file=OUTPUT_NORMS,
        old="        return self.embedding_norm(x)\n",
        new="        return x\n",
        test=f"{TESTS}/test_output_norms.py::test_a_normed_output_is_its_equation",
    ),
    Mutant(
        mistake="LayerNorm scaling: the block is ignored",
        file=SCALING,
        old="branch(self.norms[layer](state) * self.block_number[layer].rsqrt())",
        new="branch(self.norms[layer](state))",
        test=f"{TESTS}/test_layer_norm_scaling.py::test_it_is_pre_norm_with_gains_over_the_root_of_the_block",
    ),
    Mutant(
        mistake="LayerNorm scaling: a block passes its input through",
        file=SCALING,
        old="        return state + branch(self.norms[layer](state) * self.block_number[layer].rsqrt())\n",
        new="        branch(self.norms[layer](state))\n        return state\n",
        test=f"{TESTS}/test_layer_norm_scaling.py::test_layer_norm_scaling_is_its_equation",
    ),
    Mutant(
        mistake="LayerNorm scaling: blocks count from 0",
        file=SCALING,
        old="[(first_layer + k) // 2 + 1 for k",
        new="[max(1, (first_layer + k) // 2) for k",
        test=f"{TESTS}/test_layer_norm_scaling.py::test_blocks_1_4_and_9_are_scaled_by_1_a_half_and_a_third",
    ),
    Mutant(
        mistake="LayerNorm scaling: sublayers are counted",
        file=SCALING,
        old="[(first_layer + k) // 2 + 1 for k",
        new="[first_layer + k + 1 for k",
        test=f"{TESTS}/test_layer_norm_scaling.py::test_layer_norm_scaling_is_its_equation",
    ),
    Mutant(
        mistake="LayerNorm scaling: a part of a mixture counts its own blocks",
        file=SCALING,
        old="[(first_layer + k) // 2 + 1 for k",
        new="[k // 2 + 1 for k",
        test=f"{TESTS}/test_layer_norm_scaling.py::test_layer_norm_scaling_is_its_equation",
    ),
    Mutant(
        mistake="LayerNorm scaling: the variance is scaled, not the amplitude",
        file=SCALING,
        old="* self.block_number[layer].rsqrt())",
        new="* self.block_number[layer].rsqrt().sqrt())",
        test=f"{TESTS}/test_layer_norm_scaling.py::test_layer_norm_scaling_is_its_equation",
    ),
    Mutant(
        mistake="LayerNorm scaling: a depth-scaled start is kept",
        file=SCALING,
        old="    own_branch_scale: ClassVar[bool] = True\n",
        new="    own_branch_scale: ClassVar[bool] = False\n",
        test=OWN_SCALE,
    ),
    Mutant(
        mistake="a depth-scaled start is refused nowhere",
        file=TRANSFORMER,
        old='        if initialiser == "depth_scaled" and fixing:\n',
        new="        if len(fixing) > len(parts):\n",
        test=f"{BRANCH_SCALE}::test_a_depth_scaled_start_is_refused_where_the_scheme_sets_the_scale_itself",
    ),
    Mutant(
        mistake="DeepNorm: alpha is that of 32 blocks at every depth",
        file=DEEP_NORM,
        old="        self.alpha = (2 * num_blocks) ** 0.25\n",
        new="        self.alpha = 2.8284271247461903\n",
        test=f"{TESTS}/test_deep_norm.py::test_deep_norm_is_its_equation",
    ),
    Mutant(
        mistake="DeepNorm: beta is inverted",
        file=DEEP_NORM,
        old="        self.beta = (8 * num_blocks) ** -0.25\n",
        new="        self.beta = (8 * num_blocks) ** 0.25\n",
        test=BETA,
    ),
    Mutant(
        mistake="DeepNorm: sublayers are counted for blocks",
        file=DEEP_NORM,
        old="        num_blocks = max(1, (num_sublayers + 1) // 2)\n",
        new="        num_blocks = max(1, num_sublayers)\n",
        test=f"{TESTS}/test_deep_norm.py::test_the_constants_are_the_papers_by_the_number_of_blocks",
    ),
    Mutant(
        mistake="DeepNorm: queries and keys are scaled too",
        file=BRANCHES,
        old="        return [self.query_key_value.weight.chunk(3)[2], self.output.weight]\n",
        new="        return [self.query_key_value.weight, self.output.weight]\n",
        test=BETA,
    ),
    Mutant(
        mistake="DeepNorm: keys are scaled for values",
        file=BRANCHES,
        old="self.query_key_value.weight.chunk(3)[2]",
        new="self.query_key_value.weight.chunk(3)[1]",
        test=BETA,
    ),
    Mutant(
        mistake="DeepNorm: a later initialisation voids beta",
        file=TRANSFORMER,
        old="            self.residual.init_branch(branch, layer)\n",
        new="            self.residual.init_branch(branch, layer)\n"
        "            _draw_branch(branch, initialiser, depth)\n",
        test=f"{BRANCH_SCALE}::test_the_spread_of_fresh_values_is_beta_times_that_of_queries",
    ),
    Mutant(
        mistake="DeepNorm: alpha stands on the branch",
        file=DEEP_NORM,
        old="torch.add(branch(state), state, alpha=self.alpha)",
        new="torch.add(state, branch(state), alpha=self.alpha)",
        test=f"{TESTS}/test_deep_norm.py::test_deep_norm_is_its_equation",
    ),
    Mutant(
        mistake="ResiDual: the read-out is normed as a whole",
        file=RESI_DUAL,
        old="        return x_ln + self.final_norm(x_d)\n",
        new="        return self.final_norm(x_ln + x_d)\n",
        test=f"{TESTS}/test_resi_dual.py::test_resi_dual_is_its_equation",
    ),
    Mutant(
        mistake="ResiDual: the plain sum is of the normed trunk",
        file=RESI_DUAL,
        old="        return self.norms[layer](x_ln + f), x_d + f\n",
        new="        return self.norms[layer](x_ln + f), x_d + self.norms[layer](f)\n",
        test=f"{TESTS}/test_resi_dual.py::test_one_trunk_is_post_norm_and_the_other_the_plain_sum",
    ),
    Mutant(
        mistake="Admin: the embedding does not count",
        file=ADMIN,
        old="        variance = x.new_ones(())\n",
        new="        variance = x.new_zeros(())\n",
        test=f"{TESTS}/test_admin.py::test_branches_of_unit_variance_give_the_root_of_the_sublayers_number",
    ),
    Mutant(
        mistake="Admin: a sublayer is measured without the constants of those before it",
        file=ADMIN,
        old="            state = self.step(state, layer, watched)\n",
        new="            state = self.norms[layer](state + watched(state))\n",
        test=f"{TESTS}/test_admin.py::test_omega_is_the_root_of_the_variances_before_it_in_one_pass",
    ),
    Mutant(
        mistake="the profile is taken in evaluation mode",
        file=TRANSFORMER,
        old="        self.train()\n        try:\n",
        new="        self.eval()\n        try:\n",
        test="tests/model/test_calibrate.py"
        "::test_the_profile_is_of_the_training_mode_and_leaves_the_mode_as_it_was",
    ),
    Mutant(
        mistake="the profile is taken of other branches than those that train",
        file=TRANSFORMER,
        old="self.residual.calibrate(self.embedding(inputs), self.branch_calls())",
        new="self.residual.calibrate(self.embedding(inputs), [lambda u: u] * len(self.branches))",
        test="tests/model/test_calibrate.py::test_admin_measures_the_branches_that_it_trains_from",
    ),
    Mutant(
        mistake="frozen scale: what was measured is not saved",
        file=RESCALED,
        old='        self.register_buffer("sigma", torch.ones(num_sublayers))\n',
        new='        self.register_buffer("sigma", torch.ones(num_sublayers), persistent=False)\n',
        test="tests/model/test_calibrate.py::test_what_was_measured_is_saved",
    ),
    Mutant(
        mistake="a fit never calibrates",
        file=LOOP,
        old="    if (content is None or profiler is not None) and calibrated(model, train, seed, device):\n",
        new="    if False:\n",
        test="tests/training/test_calibration.py::test_a_fit_measures_its_training_windows_before_the_first_step",
    ),
    Mutant(
        mistake="frozen constants are those of one batch",
        file="fints/training/common.py",
        old="CALIBRATION_WINDOWS = 2048\n",
        new="CALIBRATION_WINDOWS = 64\n",
        test="tests/training/test_calibration.py"
        "::test_what_is_measured_is_that_of_all_windows_though_their_scale_drifts",
    ),
    Mutant(
        mistake="a resumed fit measures again, on trained weights",
        file=LOOP,
        old="        restore(content, model, optimizer, progress, kept)\n",
        new="        restore(content, model, optimizer, progress, kept)\n"
        "        model.get_submodule('').calibrate(move(train.gather(order(0)), device)[0])\n",
        test="tests/training/test_calibration.py::test_a_resumed_fit_keeps_what_was_measured",
    ),
    Mutant(
        mistake="a fit that fails gives back a network without its constants",
        file=LOOP,
        old="calibrated(model, train, seed, device):\n        kept.update(copied(model))\n",
        new="calibrated(model, train, seed, device):\n        pass\n",
        test="tests/training/test_calibration.py"
        "::test_a_fit_that_fails_at_once_gives_back_the_network_it_started_from",
    ),
    Mutant(
        mistake="frozen scale: centring is lost",
        file=RESCALED,
        old="            return z - z.mean(-1, keepdim=True), norm.weight, norm.bias\n",
        new="            return z, norm.weight, norm.bias\n",
        test=f"{TESTS}/test_rescaled_norms.py::test_frozen_scale_post_norm_is_its_equation",
    ),
    Mutant(
        mistake="window scale: earlier tokens see later ones",
        file=RESCALED,
        old='    if over == "window":\n',
        new='    if over in ("past", "window"):\n',
        test=f"{TESTS}/test_rescaled_norms.py"
        "::test_past_and_window_agree_at_the_last_token_and_past_never_looks_ahead",
    ),
    Mutant(
        mistake="window scale: it has a gradient",
        file=RESCALED,
        old="    power = x.detach().square()",
        new="    power = x.square()",
        test=f"{TESTS}/test_rescaled_norms.py"
        "::test_past_and_window_agree_at_the_last_token_and_past_never_looks_ahead",
    ),
    Mutant(
        mistake="scale-restoring Post-Norm: the head is given the window's scale",
        file=RESCALED,
        old="        return h / s\n",
        new="        return h\n",
        test=f"{TESTS}/test_rescaled_norms.py::test_window_scale_restoring_post_norm_is_its_equation",
    ),
    Mutant(
        mistake="value residual: the first block's input stands for its values",
        file=BRANCHES,
        old="reshape(batch, tokens, width))), value\n",
        new="reshape(batch, tokens, width))), (\n"
        "            x.view(batch, tokens, self.num_heads, -1).transpose(1, 2).reshape(value.shape)\n"
        "        )\n",
        test=VALUE_EQUATION,
    ),
    Mutant(
        mistake="value residual: the values are those of the block before",
        file=TRANSFORMER,
        old="        return state, own[0] if own and layer == 0 else first_value\n",
        new="        return state, own[0] if own else first_value\n",
        test=VALUE_EQUATION,
    ),
    Mutant(
        mistake="value residual: the two weights are exchanged",
        file=BRANCHES,
        old="self.value_mix[0] * first_value + self.value_mix[1] * value",
        new="self.value_mix[1] * first_value + self.value_mix[0] * value",
        test=VALUE_EQUATION,
    ),
    Mutant(
        mistake="value residual: the values are mixed after they were attended to",
        file=BRANCHES,
        old="        mixed = torch.bmm(shares.to(value.dtype), mixed_value)",
        new="        mixed = self._with_first(torch.bmm(shares.to(value.dtype), value), first_value)",
        test=VALUE_EQUATION,
    ),
    Mutant(
        mistake="value residual: no gradient reaches the first block",
        file=BRANCHES,
        old="self.value_mix[0] * first_value + ",
        new="self.value_mix[0] * first_value.detach() + ",
        test="tests/model/test_value_residual.py"
        "::test_every_attention_sends_a_gradient_to_the_first_ones_values",
    ),
)

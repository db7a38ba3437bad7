"""Mistakes in schemes of many streams beside Hyper-Connections themselves."""

from __future__ import annotations

from mutant import Mutant

BASE = "fints/residual/base.py"
HYPER_CONNECTIONS = "fints/residual/hyper_connections.py"
MATRICES = "fints/residual/hyper_connection_matrices.py"
FRAC = "fints/residual/frac_connections.py"
MANIFOLD = "fints/residual/manifold.py"
SINKHORN = "fints/residual/sinkhorn.py"
GATED = "fints/residual/gated_streams.py"
INTERFACE = "tests/residual/test_interface.py"
MATRICES_TEST = "tests/residual/test_hyper_connection_matrices.py"
FRAC_TEST = "tests/residual/test_frac_connections.py"
MANIFOLD_TEST = "tests/residual/test_manifold.py"
SINKHORN_TEST = "tests/residual/test_sinkhorn.py"
GATED_TEST = "tests/residual/test_gated_streams.py"

FRAC_EQUATION = f"{FRAC_TEST}::test_frac_connections_are_their_equation"
MANIFOLD_EQUATION = f"{MANIFOLD_TEST}::test_manifold_hyper_connections_are_their_equation"
GATED_EQUATION = f"{GATED_TEST}::test_gated_streams_are_their_equation"
DECAY = f"{INTERFACE}::test_only_dynamic_maps_decay"

UNMIXED = (
    Mutant(
        mistake="manifold: streams are mixed, and the unmixed ones carried on",
        file=MANIFOLD,
        old="            u, carried = (width_connection @ state).split([1, self.num_streams], dim=-2)\n",
        new="            u, carried = (width_connection @ state)[..., :1, :], state\n",
        test=MANIFOLD_EQUATION,
    ),
    Mutant(
        mistake="static frac: fractions are mixed, and the unmixed ones carried on",
        file=FRAC,
        old="            u, carried = mixed.split([m, m], dim=-2)\n",
        new="            u, carried = mixed[..., :m, :], state.unflatten(-1, (m, -1))\n",
        test=FRAC_EQUATION,
    ),
    Mutant(
        mistake="dynamic frac: fractions are mixed, and the unmixed ones carried on",
        file=FRAC,
        old="            u, carried = (width_connection.mT @ fractions).split([m, m], dim=-2)\n",
        new="            u, carried = width_connection[..., :m].mT @ fractions, fractions\n",
        test=FRAC_EQUATION,
    ),
    Mutant(
        mistake="a lerp adds its write and keeps the stream whole",
        file=GATED,
        old="kept = state if keep is None else keep.unsqueeze(-1) * state",
        new="kept = state",
        test=f"{GATED_TEST}::test_a_lerp_never_makes_a_stream_longer_than_what_it_was_made_of",
    ),
)

TRANSPOSED = (
    Mutant(
        mistake="manifold: H_res is transposed",
        file=MANIFOLD,
        old="return torch.cat([p.sigmoid().unsqueeze(-2), H_res], dim=-2)",
        new="return torch.cat([p.sigmoid().unsqueeze(-2), H_res.mT], dim=-2)",
        test=MANIFOLD_EQUATION,
    ),
    Mutant(
        mistake="manifold: the mixing reported has destination before source",
        file=MANIFOLD,
        old='Mixing(weights["H_pre"], weights["H_res"].mT, weights["H_post"])',
        new='Mixing(weights["H_pre"], weights["H_res"], weights["H_post"])',
        test=f"{MANIFOLD_TEST}::test_the_mixing_rebuilds_the_step",
    ),
    Mutant(
        mistake="static frac: A is transposed",
        file=FRAC,
        old="torch.cat([self.Y[layer], self.A[layer]], dim=1).t()",
        new="torch.cat([self.Y[layer], self.A[layer].t()], dim=1).t()",
        test=FRAC_EQUATION,
    ),
    Mutant(
        mistake="dynamic frac: the static Y is transposed",
        file=FRAC,
        old="torch.cat([self.Y[layer], self.A[layer], self.B[layer].t()], dim=1)",
        new="torch.cat([self.Y[layer].t(), self.A[layer], self.B[layer].t()], dim=1)",
        test=FRAC_EQUATION,
    ),
)

COEFFICIENTS = (
    Mutant(
        mistake="manifold: a softmax of rows in Sinkhorn's place",
        file=MANIFOLD,
        old="H_res = sinkhorn(r.unflatten(-1, (n, n)), ITERATIONS)",
        new="H_res = r.unflatten(-1, (n, n)).softmax(-1)",
        test=MANIFOLD_EQUATION,
    ),
    Mutant(
        mistake="Sinkhorn normalises rows before columns",
        file=SINKHORN,
        old="            for axis in (0, 1):\n",
        new="            for axis in (1, 0):\n",
        test=f"{SINKHORN_TEST}::test_it_is_the_alternate_division_by_sums",
    ),
    Mutant(
        mistake="manifold: no factor 2 on H_post",
        file=MANIFOLD,
        old="dim=-2), 2 * q.sigmoid()",
        new="dim=-2), q.sigmoid()",
        test=MANIFOLD_EQUATION,
    ),
    Mutant(
        mistake="gated: no factor 2 on the write",
        file=GATED,
        old="None, 2 * q.sigmoid()",
        new="None, q.sigmoid()",
        test=f"{GATED_TEST}::test_added_writes_start_as_pre_norm",
    ),
    Mutant(
        mistake="manifold: starting values of Hyper-Connections fed through the sigmoids",
        file=MANIFOLD,
        old='"home": _Start(pre=(3.0, -3.0), post=(0.0, 0.0), diagonal=3.0, off=0.0)',
        new='"home": _Start(pre=(1.0, 0.0), post=(1.0, 1.0), diagonal=1.0, off=0.0)',
        test=f"{INTERFACE}::test_a_scheme_says_truly_whether_it_starts_as_pre_norm",
    ),
    Mutant(
        mistake="manifold: 2 sigmoid on the dynamic part of H_post only",
        file=MANIFOLD,
        old="dim=-2), 2 * q.sigmoid()",
        new="dim=-2), 2 * (q - self.b[layer][n : 2 * n]).sigmoid() + self.b[layer][n : 2 * n]",
        test=MANIFOLD_EQUATION,
    ),
    Mutant(
        mistake="manifold: the logits of the mix are laid out column by column",
        file=MANIFOLD,
        old="sinkhorn(r.unflatten(-1, (n, n)), ITERATIONS)",
        new="sinkhorn(r.unflatten(-1, (n, n)).mT, ITERATIONS)",
        test=MANIFOLD_EQUATION,
    ),
    Mutant(
        mistake="manifold: coefficients from one stream",
        file=MANIFOLD,
        old="        x = state.flatten(-2)\n",
        new="        x = state[..., :1, :].expand_as(state).flatten(-2)\n",
        test=f"{MANIFOLD_TEST}::test_every_coefficient_depends_on_every_stream",
    ),
    Mutant(
        mistake="manifold: the columns of phi are [pre | res | post]",
        file=MANIFOLD,
        old="p, q, r = self.logits(state, layer).split(self.sizes, dim=-1)",
        new="p, r, q = self.logits(state, layer).split([self.sizes[i] for i in (0, 2, 1)], dim=-1)",
        test=MANIFOLD_EQUATION,
    ),
    Mutant(
        mistake="manifold: the norm is of each stream, not of all together",
        file=MANIFOLD,
        old="length = torch.linalg.vector_norm(x, dim=-1, keepdim=True)",
        new="length = 2 * torch.linalg.vector_norm(state[..., 0, :], dim=-1, keepdim=True)",
        test=MANIFOLD_EQUATION,
    ),
    Mutant(
        mistake="manifold: alpha also multiplies b",
        file=MANIFOLD,
        old="torch.addcmul(self.b[layer], ",
        new="torch.addcmul(scale * self.b[layer], ",
        test=MANIFOLD_EQUATION,
    ),
    Mutant(
        mistake="gated: a convex read whose weights do not sum to 1",
        file=GATED,
        old="return gates / gates.sum(-1, keepdim=True), None",
        new="return gates, None",
        test=GATED_EQUATION,
    ),
    Mutant(
        mistake="gated: no 1 / sqrt(D) in the lerp's logits",
        file=GATED,
        old='width**-0.5 if variant == "lerp_write" else 1.0',
        new="1.0",
        test=GATED_EQUATION,
    ),
    Mutant(
        mistake="gated copies: the trunk is multiplied by the gates too",
        file=GATED,
        old="        return state + branch(self.norms[layer](self.read(state, layer)))\n",
        new="        return self.read(state, layer) + branch(self.norms[layer](self.read(state, layer)))\n",
        test=f"{GATED_TEST}::test_gates_on_equal_copies_change_nothing_whatever_they_are",
    ),
)

STARTS = (
    Mutant(
        mistake="manifold: the home stream is that of the block, not of the sublayer",
        file=MANIFOLD,
        old="_start(init, mix, first_layer + k, num_streams)",
        new="_start(init, mix, (first_layer + k) // 2, num_streams)",
        test=f"{MANIFOLD_TEST}::test_the_home_start_is_that_of_the_ruling_and_the_same_for_both_mixes",
    ),
    Mutant(
        mistake="gated: the depth of the scheme's first sublayer is forgotten",
        file=GATED,
        old="2 * home_stream(first_layer + k, num_streams) - 1",
        new="2 * home_stream(k, num_streams) - 1",
        test=f"{GATED_TEST}::test_each_sublayer_reads_its_home_stream_most",
    ),
    Mutant(
        mistake="manifold: all streams are read alike, so that they never differ",
        file=MANIFOLD,
        old='"home": _Start(pre=(3.0, -3.0)',
        new='"home": _Start(pre=(0.0, 0.0)',
        test=f"{MANIFOLD_TEST}::test_training_tells_the_streams_apart",
    ),
    Mutant(
        mistake="gated: all streams are read alike, so that they never differ",
        file=GATED,
        old="2 * home_stream(first_layer + k, num_streams) - 1",
        new="0 * home_stream(first_layer + k, num_streams)",
        test=f"{GATED_TEST}::test_training_tells_the_streams_apart",
    ),
    Mutant(
        mistake="manifold: a mix so near the identity that it is frozen",
        file=MANIFOLD,
        old="post=(0.0, 0.0), diagonal=3.0, off=0.0)",
        new="post=(0.0, 0.0), diagonal=10.0, off=0.0)",
        test=f"{MANIFOLD_TEST}::test_the_mix_can_learn_from_the_start",
    ),
    Mutant(
        mistake="gated: lerp gates that start alike at every depth",
        file=GATED,
        old="inverse = math.sqrt(num_sublayers / BASE_LAYERS) * (1 + math.exp(-BASE_BIAS))",
        new="inverse = 1 + math.exp(-BASE_BIAS)",
        test=f"{GATED_TEST}::test_lerp_gates_start_smaller_as_the_root_of_depth",
    ),
    Mutant(
        mistake="fresh output weights are rescaled by sqrt(n) unasked",
        file=HYPER_CONNECTIONS,
        old='        out_init_scale: str = "none",\n    ) -> None:\n',
        new='        out_init_scale: str = "mul_sqrt_n",\n    ) -> None:\n',
        test=f"{MATRICES_TEST}::test_fresh_output_weights_are_rescaled_only_if_asked",
    ),
)

READ_OUT = (
    Mutant(
        mistake="streams are merged by their sum",
        file=BASE,
        old="    return terms[0] / num_streams\n",
        new="    return terms[0]\n",
        test=f"{INTERFACE}::test_merging_what_was_opened_gives_it_back_bit_for_bit",
    ),
)

DECAYED = (
    Mutant(
        mistake="manifold: weight decay on b and alpha",
        file=MANIFOLD,
        old='if not name.startswith("phi.")}',
        new='if not name.startswith(("phi.", "b.", "alpha."))}',
        test=DECAY,
    ),
    Mutant(
        mistake="dynamic frac: weight decay on the static matrices",
        file=FRAC,
        old='if not name.startswith("W.")}',
        new='if not name.startswith(("W.", "A.", "Y.", "B."))}',
        test=DECAY,
    ),
    Mutant(
        mistake="static frac: weight decay on the static matrices",
        file=FRAC,
        old="        return {name for name, _ in self.named_parameters()}\n",
        new='        return {name for name, _ in self.named_parameters() if "norm" in name}\n',
        test=DECAY,
    ),
    Mutant(
        mistake="gated: weight decay on the gates' biases",
        file=GATED,
        old='if not name.startswith("W.")}',
        new='if not name.startswith(("W.", "b."))}',
        test=DECAY,
    ),
)

LAYOUTS = (
    Mutant(
        mistake="Eq. 55 as printed: a parallel sublayer reads the stream before its own",
        file=MATRICES,
        old="matrix(identity[t], identity[t], identity)",
        new="matrix(identity[t], identity[t - 1], identity)",
        test=f"{MATRICES_TEST}::test_the_papers_parallel_matrices_multiply_the_trunk_at_every_group",
    ),
    Mutant(
        mistake="the paper's parallel matrices taken for the parallel block",
        file=MATRICES,
        old="    first = matrix(identity[0], identity[0], copies)\n"
        "    return [first, *(matrix(identity[0], identity[t], identity) for t in range(1, num_streams))]\n",
        new="    return parallel_matrices(num_streams)\n",
        test=f"{MATRICES_TEST}::test_the_exact_parallel_matrices_give_the_parallel_block",
    ),
    Mutant(
        mistake="Post-Norm's matrix without the covariance of trunk and branch",
        file=MATRICES,
        old=" + 2 * (h_centred * y_centred).mean(-1)",
        new="",
        test=f"{MATRICES_TEST}::test_the_post_norm_matrix_of_each_token_gives_post_norm",
    ),
)

PRECISION = (
    Mutant(
        mistake="manifold: coefficients in the lower precision of autocast",
        file=MANIFOLD,
        old="        with full_precision(state):\n"
        "            width_connection, H_post = self._coefficients(state, layer)\n"
        "        return {\n",
        new="        width_connection, H_post = self._coefficients(state, layer)\n        return {\n",
        test=f"{MANIFOLD_TEST}::test_coefficients_stay_in_full_precision_with_finite_gradients_under_autocast",
    ),
    Mutant(
        mistake="Sinkhorn on the exponentials",
        file=SINKHORN,
        old="                normalised = log_m.log_softmax(axis)\n",
        new="                normalised = (log_m.exp() / log_m.exp().sum(axis, keepdim=True)).log()\n",
        test=f"{SINKHORN_TEST}::test_extreme_logits_have_finite_values_and_the_right_gradients",
    ),
    Mutant(
        mistake="Sinkhorn's backward pass through its last iteration only",
        file=SINKHORN,
        old="        for step in reversed(range(len(log_sums))):\n",
        new="        for step in reversed(range(len(log_sums) - 2, len(log_sums))):\n",
        test=f"{SINKHORN_TEST}::test_the_backward_pass_is_that_of_the_iterations",
    ),
    Mutant(
        mistake="Sinkhorn's backward pass walks the normalisations forward",
        file=SINKHORN,
        old="            axis = step % 2\n",
        new="            axis = 1 - step % 2\n",
        test=f"{SINKHORN_TEST}::test_the_backward_pass_is_that_of_the_iterations",
    ),
)

MUTANTS = UNMIXED + TRANSPOSED + COEFFICIENTS + STARTS + READ_OUT + DECAYED + LAYOUTS + PRECISION

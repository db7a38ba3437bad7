"""Mistakes in attention over depth, DenseFormer, Mix-LN and mixtures by depth."""

from __future__ import annotations

from mutant import Mutant

ATTENTION = "fints/residual/depth_attention.py"
RESIDUALS = "fints/residual/attention_residuals.py"
STATES = "fints/residual/state_attention.py"
DENSE = "fints/residual/denseformer.py"
MIX_LN = "fints/residual/mix_ln.py"
BY_DEPTH = "fints/residual/by_depth.py"
TESTS = "tests/residual/test_attention_residuals.py"
DENSE_TESTS = "tests/residual/test_denseformer.py"
MIX_LN_TESTS = "tests/residual/test_mix_ln.py"
BY_DEPTH_TESTS = "tests/residual/test_by_depth.py"
FULL = f"{TESTS}::test_attention_residuals_are_their_equation"

MUTANTS = (
    Mutant(
        mistake="attention residuals attend over cumulative states",
        file=RESIDUALS,
        old="        y = branch(self.norms[layer](u)).to(u.dtype)\n        sources, keys = halves(state)\n",
        new="        sources, keys = halves(state)\n"
        "        y = sources[-1] + branch(self.norms[layer](u)).to(u.dtype)\n",
        test=FULL,
    ),
    Mutant(
        mistake="the static query depends on the input",
        file=ATTENTION,
        old="            queries = torch.stack([self._vector(self.w[k - 1], k) for k in layers])\n",
        new="            queries = torch.stack([self._vector(self.w[k - 1], k) for k in layers])\n"
        "            queries = queries * source.mean(dim=(0, 1))\n",
        test=FULL,
    ),
    Mutant(
        mistake="scores are divided by the root of the width",
        file=ATTENTION,
        old="            scores = queries @ source.reshape(-1, source.shape[-1]).t()\n",
        new="            scores = queries @ source.reshape(-1, source.shape[-1]).t()\n"
        "            scores = scores / source.shape[-1] ** 0.5\n",
        test=FULL,
    ),
    Mutant(
        mistake="queries start at random",
        file=ATTENTION,
        old="nn.ParameterList(torch.zeros(width) for",
        new="nn.ParameterList(0.02 * torch.randn(width) for",
        test=f"{TESTS}::test_the_start_equals_pre_norm_at_every_depth_and_eps",
    ),
    Mutant(
        mistake="the embedding is counted in the first block too",
        file=RESIDUALS,
        old="        if layer % self.block_size:\n            p = sources[-1] + p\n",
        new="        if layer == 0:\n            p = sources[0] + p\n"
        "        if layer % self.block_size:\n            p = sources[-1] + p\n",
        test=f"{TESTS}::test_block_attention_residuals_are_their_equation",
    ),
    Mutant(
        mistake="the read-out is the plain sum of the sources, with no query of its own",
        file=ATTENTION,
        old='        """Return N(u)."""\n        return self.final_norm(self.read(state, layer))\n',
        new='        """Return N(u)."""\n        return self.final_norm(sum(halves(state)[0]))\n',
        test=f"{TESTS}::test_the_read_out_attends_with_a_query_of_its_own",
    ),
    Mutant(
        mistake="keys are not normed",
        file=ATTENTION,
        old="            return scores if scale is None else scores * scale\n",
        new="            return scores\n",
        test=FULL,
    ),
    Mutant(
        mistake="values are normed as well as keys",
        file=ATTENTION,
        old="        return weighted_sum(self.scale(len(sources)) * alpha, sources)\n",
        new="        sources = [v * self.queries._inverse_rms(v).unsqueeze(-1) for v in sources]\n"
        "        return weighted_sum(self.scale(len(sources)) * alpha, sources)\n",
        test=FULL,
    ),
    Mutant(
        mistake="the softmax runs over tokens",
        file=ATTENTION,
        old="scores.softmax(0) if",
        new="scores.softmax(-1) if",
        test=FULL,
    ),
    Mutant(
        mistake="each layer scores with the query of the layer before it",
        file=ATTENTION,
        old="                row = layer - self.num_sublayers - 1\n",
        new="                row = max(layer - 1, 1) - self.num_sublayers - 1\n",
        test=FULL,
    ),
    Mutant(
        mistake="a window drops the embedding",
        file=ATTENTION,
        old="        return [0, *range(count - self.window, count)]\n",
        new="        return list(range(count - self.window - 1, count))\n",
        test=f"{TESTS}::test_a_window_shows_the_embedding_and_the_latest_sources",
    ),
    Mutant(
        mistake="a running sum starts anew one sublayer late",
        file=RESIDUALS,
        old="        if layer % self.block_size:\n            p = sources[-1] + p\n",
        new="        if (layer - 1) % self.block_size and layer:\n            p = sources[-1] + p\n",
        test=f"{TESTS}::test_block_attention_residuals_are_their_equation",
    ),
    Mutant(
        mistake="attention over states hands on the mean instead of the state",
        file=STATES,
        old="        h = states[-1] + branch(self.norms[layer](u))\n",
        new="        h = u + branch(self.norms[layer](u))\n",
        test=f"{TESTS}::test_state_attention_is_its_equation",
    ),
    Mutant(
        mistake="the gradient of the weights is that of their sum",
        file=ATTENTION,
        old="torch.linalg.vecdot(dh, source) for source in sources])",
        new="torch.linalg.vecdot(dh, sources[0]) for source in sources])",
        test=f"{TESTS}::test_gradients_agree_with_finite_differences",
    ),
    Mutant(
        mistake="maps of the input are spared weight decay",
        file=ATTENTION,
        old='if not name.startswith("queries.W.")}',
        new="}",
        test=f"{TESTS}::test_only_maps_of_the_input_decay",
    ),
    Mutant(
        mistake="DenseFormer: the weights pass through a softmax",
        file=DENSE,
        old="        return self.alpha[block // self.period - 1], chosen\n",
        new="        return self.alpha[block // self.period - 1].softmax(0), chosen\n",
        test=f"{DENSE_TESTS}::test_three_blocks_by_hand",
    ),
    Mutant(
        mistake="DenseFormer: a redraw of all linear maps redraws the weights",
        file=DENSE,
        old="            alone[-1] = 1.0\n            self.alpha.append(alone)\n",
        new="            alone[-1] = 1.0\n"
        "            drawn = nn.Linear(len(alone), 1, bias=False)\n"
        "            drawn.weight.data.copy_(alone)\n"
        "            self.add_module(f'drawn_{block}', drawn)\n"
        "            self.alpha.append(drawn.weight)\n",
        test=f"{DENSE_TESTS}::test_redrawing_every_linear_map_leaves_the_start_alone",
    ),
    Mutant(
        mistake="DenseFormer: sources are counted from the first block, not back from the last",
        file=DENSE,
        old="range(block % self.dilation, block + 1, self.dilation)",
        new="range(0, (block // self.dilation) * self.dilation + 1, self.dilation)",
        test=f"{DENSE_TESTS}::test_denseformer_is_its_equation",
    ),
    Mutant(
        mistake="DenseFormer: averages are averaged again",
        file=DENSE,
        old="        return *sources, weighted_sum(weights, [sources[j] for j in chosen])\n",
        new="        y = weighted_sum(weights, [sources[j] for j in chosen])\n        return *past, y, y\n",
        test=f"{DENSE_TESTS}::test_denseformer_is_its_equation",
    ),
    Mutant(
        mistake="Mix-LN: the boundary is one block too high",
        file=MIX_LN,
        old="num_sublayers // 2) + 1e-9)\n",
        new="num_sublayers // 2) + 1e-9) + 2\n",
        test=f"{MIX_LN_TESTS}::test_the_boundary_is_the_floor_of_the_share_of_blocks",
    ),
    Mutant(
        mistake="Mix-LN: the boundary is one sublayer too high",
        file=MIX_LN,
        old="        if layer < self.post_sublayers:\n",
        new="        if layer <= self.post_sublayers:\n",
        test=f"{MIX_LN_TESTS}::test_mix_ln_is_its_equation",
    ),
    Mutant(
        mistake="Mix-LN: there is no final norm",
        file=MIX_LN,
        old="        return self.final_norm(state)\n",
        new="        return state\n",
        test=f"{MIX_LN_TESTS}::test_a_share_of_none_is_pre_norm_and_of_all_is_post_norm_with_one_norm_more",
    ),
    Mutant(
        mistake="Mix-LN: Pre-Norm below and Post-Norm above",
        file=MIX_LN,
        old="        if layer < self.post_sublayers:\n",
        new="        if layer >= len(self.norms) - self.post_sublayers:\n",
        test=f"{MIX_LN_TESTS}::test_mix_ln_is_the_mixture_of_its_two_halves",
    ),
    Mutant(
        mistake="streams are summed at an interior boundary",
        file=BY_DEPTH,
        old="        state: State = self._part(i).open(h)\n        return state\n",
        new="        state: State = self._part(i).open(h * getattr(below, 'num_streams', 1))\n"
        "        return state\n",
        test=f"{BY_DEPTH_TESTS}::test_segments_that_start_as_pre_norm_start_together_as_pre_norm",
    ),
    Mutant(
        mistake="attention over depth hands on its mean without the count",
        file=RESIDUALS,
        old='        """Return the number of sources; 2 for sigmoids."""\n'
        "        return 1 / self.queries.equal_share(count)\n",
        new='        """Return the number of sources; 2 for sigmoids."""\n        return 1.0\n',
        test=f"{BY_DEPTH_TESTS}::test_segments_that_start_as_pre_norm_start_together_as_pre_norm",
    ),
    Mutant(
        mistake="inner final norms stay",
        file=BY_DEPTH,
        old="                part.final_norm = nn.Identity()\n",
        new="                pass\n",
        test=f"{BY_DEPTH_TESTS}::test_only_the_last_segment_has_a_final_norm",
    ),
    Mutant(
        mistake="a growing trunk enters a normed one as it is",
        file=BY_DEPTH,
        old="            if self._part(i + 1).normalises_trunk and not self._part(i).normalises_trunk\n",
        new="            if False\n",
        test=f"{BY_DEPTH_TESTS}::test_a_norm_stands_only_where_a_growing_trunk_enters_a_normed_one",
    ),
    Mutant(
        mistake="home streams and scalings count from the segment's start",
        file=BY_DEPTH,
        old="first_layer=first_layer + start,\n",
        new="first_layer=0,\n",
        test=f"{BY_DEPTH_TESTS}::"
        "test_home_streams_and_scalings_count_from_the_bottom_and_deep_norm_within_its_segment",
    ),
    Mutant(
        mistake="a segment's last step returns its own state",
        file=BY_DEPTH,
        old="        return i + 1 < len(self.parts) and layer + 1 == self.starts[i + 1]\n",
        new="        return i + 1 < len(self.parts) and layer == self.starts[i + 1]\n",
        test=f"{BY_DEPTH_TESTS}::test_the_state_that_enters_a_sublayer_belongs_to_its_segment",
    ),
    Mutant(
        mistake="parts are calibrated on the embedding",
        file=BY_DEPTH,
        old="            h = part.merge(state, 0)\n",
        new="            h = x\n",
        test=f"{BY_DEPTH_TESTS}::test_a_part_is_calibrated_on_what_enters_it",
    ),
)

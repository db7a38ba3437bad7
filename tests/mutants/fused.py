"""Mistakes in the fused passes: a write left out, a sign on the way back, a sublayer too far."""

from __future__ import annotations

from mutant import Mutant

FRAC = "fints/residual/frac_kernels.cpp"
GATED = "fints/residual/gated_kernels.cpp"
STREAM = "fints/residual/stream_kernels.cpp"
DEPTH = "fints/residual/depth_kernels.cpp"
TESTS = "tests/residual/test_fused.py"
DEPTH_TESTS = "tests/residual/test_fused_depth.py"
PHASES = "tests/residual/test_two_phase.py"
FUSED = f"{TESTS}::test_the_fused_pass_is_the_plain_one_and_so_are_its_gradients"
FUSED_DEPTH = f"{DEPTH_TESTS}::test_the_fused_pass_is_the_plain_one_and_so_are_its_gradients"

MUTANTS = (
    Mutant(
        mistake="fused frac: what a branch returned is not written",
        file=FRAC,
        old="load(x + at) + b[i] * load(y + at)",
        new="load(x + at)",
        test=FUSED,
    ),
    Mutant(
        mistake="fused frac: the slope of tanh has the wrong sign",
        file=FRAC,
        old="(1.0f - a * a)",
        new="(1.0f + a * a)",
        test=FUSED,
    ),
    Mutant(
        mistake="fused frac: B is that of the sublayer before",
        file="fints/residual/fused_frac.py",
        old="Coefficients(scheme.Y[layer], scheme.A[layer], scheme.B[layer])",
        new="Coefficients(scheme.Y[layer], scheme.A[layer], scheme.B[layer - 1])",
        test=FUSED,
    ),
    Mutant(
        mistake="fused streams: the coefficients' norm has the wrong sign on the way back",
        file=STREAM,
        old="- centre - load(x + at) * slope) * scale + r",
        new="- centre + load(x + at) * slope) * scale + r",
        test=FUSED,
    ),
    Mutant(
        mistake="fused streams: the bias of the coefficients' norm does not go through W",
        file=STREAM,
        old="if (from.norm.bias) offsets[j] +=",
        new="if (false) offsets[j] +=",
        test=FUSED,
    ),
    Mutant(
        mistake="fused streams: the gradient of W forgets the bias of the norm",
        file=STREAM,
        old="if (from.norm.bias) dW[k * C + j] +=",
        new="if (false) dW[k * C + j] +=",
        test=FUSED,
    ),
    Mutant(
        mistake="fused streams: the depth connection is scaled by s_alpha too",
        file=STREAM,
        old="j <= N ? *from.s_alpha : *from.s_beta",
        new="j <= N + 1 ? *from.s_alpha : *from.s_beta",
        test=FUSED,
    ),
    Mutant(
        mistake="fused streams: the branch's norm is that of the sublayer before",
        file="fints/residual/fused.py",
        old="norm = norm_arguments(scheme.norms[layer])\n        z, streams",
        new="norm = norm_arguments(scheme.norms[layer - 1])\n        z, streams",
        test=FUSED,
    ),
    Mutant(
        mistake="fused single stream: a factor of the branch learns from what the branch read",
        file="fints/residual/single_kernels.cpp",
        old="along_y += g * load(y + at);",
        new="along_y += g * load(x + at);",
        test=FUSED,
    ),
    Mutant(
        mistake="fused frozen norm: a row is multiplied by sigma, not divided",
        file="fints/residual/fused_single.py",
        old="fixed = 1 / scheme.sigma[layer - 1].item()",
        new="fixed = scheme.sigma[layer - 1].item()",
        test=FUSED,
    ),
    Mutant(
        mistake="fused gates: a lerp sends its streams' gradients back whole",
        file=GATED,
        old="p.lerp ? g - w[i] * g : g",
        new="g",
        test=FUSED,
    ),
    Mutant(
        mistake="fused gates: the norm of the streams has the wrong sign on the way back",
        file=GATED,
        old="to_self[i] = -(dp",
        new="to_self[i] = (dp",
        test=FUSED,
    ),
    Mutant(
        mistake="fused gates: a convex read sends back what a softmax would",
        file=GATED,
        old="dp *= 1.0f - r * sum;",
        new="dp *= 1.0f;",
        test=FUSED,
    ),
    Mutant(
        mistake="fused gates: streams are handed on unwritten",
        file="fints/residual/fused_gated.py",
        old="PendingStreams(streams, branch(z)",
        new="PendingStreams(pending[0], branch(z)",
        test=FUSED,
    ),
    Mutant(
        mistake="fused gates: later uses of the streams send nothing back",
        file="fints/residual/gated_functions.py",
        old="        more = None if more is None else more.contiguous()\n",
        new="        more = None\n",
        test=FUSED,
    ),
    Mutant(
        mistake="two phases: what was known keeps the scale of its own largest score",
        file=DEPTH,
        old="                all.values[n] = of_known;\n",
        new="                all.values[n] = fill(1.0f);\n",
        test=FUSED_DEPTH,
    ),
    Mutant(
        mistake="two phases: phase one takes the query of the sublayer before",
        file=DEPTH,
        old="queries + (step - 1) * d, 0, group.common",
        new="queries + (step - 2) * d, 0, group.common",
        test=FUSED_DEPTH,
    ),
    Mutant(
        mistake="fused depth: the keys' norm has the wrong sign on the way back",
        file=DEPTH,
        old="- slopes[k] * load(v",
        new="+ slopes[k] * load(v",
        test=FUSED_DEPTH,
    ),
    Mutant(
        mistake="fused depth: the gradient of a growing sum is handed on a sublayer late",
        file="fints/residual/depth_functions.py",
        old="steps[slot + 1].grows",
        new="steps[slot].grows",
        test=FUSED_DEPTH,
    ),
    Mutant(
        mistake="two phases: sums of exponentials are added without their scales",
        file="fints/residual/two_phase.py",
        old="of_first * first.sum + of_second * second.sum",
        new="first.sum + second.sum",
        test=f"{PHASES}::test_two_phases_are_the_direct_softmax_and_so_are_their_gradients",
    ),
    Mutant(
        mistake="fused mixture: a growing trunk enters a normed one as it is",
        file="fints/residual/fused_by_depth.py",
        old="self.scheme.boundary_norms[i](self._merged(i, after, local + 1))",
        new="self._merged(i, after, local + 1)",
        test="tests/residual/test_fused_by_depth.py::"
        "test_the_fused_pass_is_the_plain_one_and_so_are_its_gradients",
    ),
)

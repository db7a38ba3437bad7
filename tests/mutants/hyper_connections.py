"""Mistakes in Hyper-Connections."""

from __future__ import annotations

from mutant import Mutant

HYPER_CONNECTIONS = "fints/residual/hyper_connections.py"
STREAMS = "fints/residual/streams.py"
EQUATION = "tests/residual/test_hyper_connections_equation.py"
START = "tests/residual/test_hyper_connections_start.py"
INTERFACE = "tests/residual/test_interface.py"

MUTANTS = (
    Mutant(
        mistake="dynamic: a dropped branch also skips the mix of streams",
        file=HYPER_CONNECTIONS,
        old="        return torch.addcmul(carried, depth_connection, y.to(carried.dtype).unsqueeze(-2))\n",
        new="        if not y.any():\n            return state\n"
        "        return torch.addcmul(carried, depth_connection, y.to(carried.dtype).unsqueeze(-2))\n",
        test=f"{INTERFACE}::test_a_silent_branch_leaves_the_mix_of_streams_at_work",
    ),
    Mutant(
        mistake="static: streams are mixed, and the unmixed ones carried on",
        file=HYPER_CONNECTIONS,
        old="            u, carried = mixed.split([1, self.num_streams])\n",
        new="            u, _ = mixed.split([1, self.num_streams])\n"
        "            carried = state.reshape(self.num_streams, -1)\n",
        test=f"{EQUATION}::test_static_hyper_connections_are_their_equation",
    ),
    Mutant(
        mistake="dynamic: streams are mixed, and the unmixed ones carried on",
        file=HYPER_CONNECTIONS,
        old="            u, carried = (width_connection.mT @ state).split([1, self.num_streams], dim=-2)\n",
        new="            u, carried = (width_connection.mT @ state)[..., :1, :], state\n",
        test=f"{EQUATION}::test_dynamic_hyper_connections_are_their_equation",
    ),
    Mutant(
        mistake="the mix of streams does not depend on A_r",
        file=HYPER_CONNECTIONS,
        old="width_connection = torch.cat([self.A_m[layer], self.A_r[layer]], dim=1)\n",
        new="width_connection = torch.cat([self.A_m[layer], torch.eye(len(state)).to(state)], dim=1)\n",
        test=f"{EQUATION}::test_the_output_depends_on_how_streams_are_mixed",
    ),
    Mutant(
        mistake="static: A_r is transposed",
        file=HYPER_CONNECTIONS,
        old="torch.cat([self.A_m[layer], self.A_r[layer]], dim=1)\n",
        new="torch.cat([self.A_m[layer], self.A_r[layer].t()], dim=1)\n",
        test=f"{EQUATION}::test_static_hyper_connections_are_their_equation",
    ),
    Mutant(
        mistake="dynamic: the static A_r is transposed",
        file=HYPER_CONNECTIONS,
        old="torch.cat([self.A_m[layer], self.A_r[layer], self.B[layer].t()], dim=1)\n",
        new="torch.cat([self.A_m[layer], self.A_r[layer].t(), self.B[layer].t()], dim=1)\n",
        test=f"{EQUATION}::test_dynamic_hyper_connections_are_their_equation",
    ),
    Mutant(
        mistake="dynamic: A_r(H) is transposed as a whole",
        file=HYPER_CONNECTIONS,
        old="            u, carried = (width_connection.mT @ state).split([1, self.num_streams], dim=-2)\n",
        new="            u = width_connection[..., :1].mT @ state\n"
        "            carried = width_connection[..., 1:] @ state\n",
        test=f"{EQUATION}::test_dynamic_hyper_connections_are_their_equation",
    ),
    Mutant(
        mistake="the home stream is that of the block, not of the sublayer",
        file=STREAMS,
        old="    home[layer % num_streams] = 1.0\n",
        new="    home[layer // 2 % num_streams] = 1.0\n",
        test=f"{START}::test_each_sublayer_reads_its_home_stream",
    ),
    Mutant(
        mistake="the home stream is drawn at random",
        file=STREAMS,
        old="    home[layer % num_streams] = 1.0\n",
        new="    home[int(torch.randint(num_streams, ()))] = 1.0\n",
        test=f"{START}::test_each_sublayer_reads_its_home_stream",
    ),
    Mutant(
        mistake="every sublayer reads the mean of the streams",
        file=STREAMS,
        old="    home[layer % num_streams] = 1.0\n",
        new="    home[:] = 1.0 / num_streams\n",
        test=f"{START}::test_each_sublayer_reads_its_home_stream",
    ),
    Mutant(
        mistake="the depth of the scheme's first sublayer is forgotten",
        file=HYPER_CONNECTIONS,
        old="home_stream(first_layer + k, num_streams)",
        new="home_stream(k, num_streams)",
        test=f"{START}::test_each_sublayer_reads_its_home_stream",
    ),
    Mutant(
        mistake="dynamic: weight decay on the static matrices",
        file=HYPER_CONNECTIONS,
        old='if not name.startswith("W.")}',
        new='if not name.startswith(("W.", "A_m.", "A_r.", "B."))}',
        test=f"{INTERFACE}::test_only_dynamic_maps_decay",
    ),
    Mutant(
        mistake="static: weight decay on the static matrices",
        file=HYPER_CONNECTIONS,
        old="        return {name for name, _ in self.named_parameters()}\n",
        new='        return {name for name, _ in self.named_parameters() if "norm" in name}\n',
        test=f"{INTERFACE}::test_only_dynamic_maps_decay",
    ),
)

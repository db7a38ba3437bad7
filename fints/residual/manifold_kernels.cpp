// Manifold Hyper-Connections on a CPU.
//
// All arrays are float32. The same number of threads gives the same bits.
//
// Shapes: t tokens, n streams, d width.

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <vector>

#include "elementary.h"
#include "share.h"
#include "streams.h"
#include "vectors.h"

namespace {

// One normalisation of log M over rows or columns; keeps M in `kept`.
template <int N>
inline void normalise(Vector* z, int across, int along, Vector* kept) {
    for (int a = 0; a < N; a++) {
        Vector* line = z + a * across;
        Vector top = line[0];
        for (int b = 1; b < N; b++) top = largest(top, line[b * along]);
        Vector sum = {}, e[N];
        for (int b = 0; b < N; b++) {
            e[b] = exponential(line[b * along] - top);
            sum += e[b];
        }
        Vector shift = top + logarithm(sum), share = 1.0f / sum;
        for (int b = 0; b < N; b++) {
            line[b * along] -= shift;
            kept[a * across + b * along] = e[b] * share;
        }
    }
}

template <int N>
inline void normalise_back(Vector* dz, int across, int along, const Vector* kept) {
    for (int a = 0; a < N; a++) {
        Vector sum = {};
        for (int b = 0; b < N; b++) sum += dz[a * across + b * along];
        for (int b = 0; b < N; b++) dz[a * across + b * along] -= kept[a * across + b * along] * sum;
    }
}

// Logits [p | q | r] (2 n + n^2) of 16 tokens at a time, a lane each, to `read` (n) and `write` (n + 1, n):
// read = sigmoid(p), write = Sinkhorn(r) transposed above 2 sigmoid(q). With dread, the way back.
template <int N>
void manifold(int64_t t, const float* logits, int iterations, float* read, float* write, const float* dread,
              const float* dwrite, float* dlogits, int threads) {
    constexpr int L = 2 * N + N * N, W = (N + 1) * N;
    int64_t groups = (t + LANES - 1) / LANES;
    share(groups, GRAIN / LANES, threads, 0, nullptr, [&](int64_t first, int64_t last, float*) {
        std::vector<Vector> history(2 * iterations * N * N);
        for (int64_t group = first; group < last; group++) {
            int64_t start = group * LANES;
            int count = int(std::min<int64_t>(LANES, t - start));
            float lanes[L][LANES] = {};
            for (int lane = 0; lane < count; lane++)
                for (int i = 0; i < L; i++) lanes[i][lane] = logits[(start + lane) * L + i];
            Vector z[N * N];
            for (int i = 0; i < N * N; i++) z[i] = load(lanes[2 * N + i]);
            Vector* kept = history.data();
            for (int each = 0; each < iterations; each++) {
                normalise<N>(z, 1, N, kept);
                normalise<N>(z, N, 1, kept + N * N);
                kept += 2 * N * N;
            }
            Vector gates[2 * N];
            for (int i = 0; i < 2 * N; i++) gates[i] = logistic(load(lanes[i]));
            const Vector* m = kept - N * N;
            if (!dread) {
                for (int i = 0; i < N; i++)
                    for (int lane = 0; lane < count; lane++) {
                        read[(start + lane) * N + i] = gates[i][lane];
                        write[(start + lane) * W + N * N + i] = 2.0f * gates[N + i][lane];
                        for (int j = 0; j < N; j++) write[(start + lane) * W + j * N + i] = m[i * N + j][lane];
                    }
                continue;
            }
            float back[L][LANES] = {};
            for (int lane = 0; lane < count; lane++)
                for (int i = 0; i < N; i++) {
                    back[i][lane] = dread[(start + lane) * N + i];
                    back[N + i][lane] = 2.0f * dwrite[(start + lane) * W + N * N + i];
                    for (int j = 0; j < N; j++)
                        back[2 * N + i * N + j][lane] = dwrite[(start + lane) * W + j * N + i];
                }
            Vector dz[N * N];
            for (int i = 0; i < N * N; i++) dz[i] = load(back[2 * N + i]) * m[i];
            for (int each = 0; each < iterations; each++) {
                kept -= 2 * N * N;
                normalise_back<N>(dz, N, 1, kept + N * N);
                normalise_back<N>(dz, 1, N, kept);
            }
            for (int i = 0; i < 2 * N; i++) store(back[i], load(back[i]) * gates[i] * (1.0f - gates[i]));
            for (int i = 0; i < N * N; i++) store(back[2 * N + i], dz[i]);
            for (int lane = 0; lane < count; lane++)
                for (int i = 0; i < L; i++) dlogits[(start + lane) * L + i] = back[i][lane];
        }
    });
}

}  // namespace

extern "C" {

void fints_manifold(int64_t t, int n, const float* logits, int iterations, float* read, float* write,
                    const float* dread, const float* dwrite, float* dlogits, int threads) {
    WITH(N, n, manifold<N>(t, logits, iterations, read, write, dread, dwrite, dlogits, threads))
}

}  // extern "C"

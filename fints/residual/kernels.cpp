// The stream operations of residual schemes on a CPU, each one pass over the streams.
//
// Written in vectors of 16 floats, which the compiler lowers to what the machine has. All arrays are
// float32, a token's streams lie side by side, and widths are multiples of 16. The same number of threads
// gives the same bits.
//
// Shapes: t tokens, n streams, d width, k sources, m results.

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <vector>

#include "elementary.h"
#include "share.h"
#include "vectors.h"

namespace {

constexpr int MOST_STREAMS = 8;

// One token's write: h_j = sum_i w_ij x_i + w_nj y.
template <int N>
inline void write_row(int64_t d, const float* x, const float* y, const float* w, float* h) {
    for (int64_t at = 0; at < d; at += LANES) {
        Vector sum[N], v = load(y + at);
        for (int j = 0; j < N; j++) sum[j] = w[N * N + j] * v;
        for (int i = 0; i < N; i++) {
            v = load(x + i * d + at);
            for (int j = 0; j < N; j++) sum[j] += w[i * N + j] * v;
        }
        for (int j = 0; j < N; j++) store(h + j * d + at, sum[j]);
    }
}

// Its way back from dh: dx, dy, and the products x_i . dh_j and y . dh_j, lane by lane.
template <int N>
inline void write_row_back(int64_t d, const float* x, const float* y, const float* w, const float* dh, float* dx,
                           float* dy, Vector* dots) {
    for (int i = 0; i <= N; i++) {
        const float* from = i < N ? x + i * d : y;
        float* to = i < N ? dx + i * d : dy;
        Vector dot[N] = {};
        for (int64_t at = 0; at < d; at += LANES) {
            Vector v = load(from + at), sum = {};
            for (int j = 0; j < N; j++) {
                Vector g = load(dh + j * d + at);
                dot[j] += v * g;
                sum += w[i * N + j] * g;
            }
            store(to + at, sum);
        }
        for (int j = 0; j < N; j++) dots[i * N + j] = dot[j];
    }
}

template <int N>
inline void read_row(int64_t d, const float* h, const float* r, float* u) {
    for (int64_t at = 0; at < d; at += LANES) {
        Vector sum = {};
        for (int i = 0; i < N; i++) sum += r[i] * load(h + i * d + at);
        store(u + at, sum);
    }
}

// What a pass over the tokens writes and then reads. Without y there is nothing to write. `step` numbers lie
// between the weights of two tokens, 0 where they share them.
struct Pass {
    int64_t t, d;
    const float *x, *y, *w;
    int64_t step;
    int threads;
};

// The backward pass of Pass: `more` is what later uses of the written streams send back, and may lie where
// dx does: a token's are read before they are written.
struct Back {
    const float *du, *more;
    float *dx, *dy, *dw;
};

// h of a token in `row`, or where it lies.
template <int N>
inline const float* streams_of(const Pass& p, int64_t token, float* row) {
    const float* x = p.x + token * N * p.d;
    if (!p.y) return x;
    write_row<N>(p.d, x, p.y + token * p.d, p.w + token * p.step, row);
    return row;
}

// From dh of a token to dx, dy and dw; `shared` holds lanes of dw where tokens share it.
template <int N>
inline void streams_back(const Pass& p, const Back& b, int64_t token, const float* dh, float* shared) {
    float* dx = b.dx + token * N * p.d;
    if (!p.y) {
        std::memcpy(dx, dh, sizeof(float) * N * p.d);
        return;
    }
    constexpr int W = (N + 1) * N;
    Vector dots[W];
    write_row_back<N>(p.d, p.x + token * N * p.d, p.y + token * p.d, p.w + token * p.step, dh, dx,
                      b.dy + token * p.d, dots);
    for (int i = 0; i < W; i++) {
        if (p.step)
            b.dw[token * p.step + i] = total(dots[i]);
        else
            store(shared + i * LANES, load(shared + i * LANES) + dots[i]);
    }
}

template <int N>
void add_lanes(const Pass& p, const Back& b, const float* shared) {
    if (p.y && !p.step)
        for (int i = 0; i < (N + 1) * N; i++) b.dw[i] = total(load(shared + i * LANES));
}

// Writes, then reads with the given weights r, `r_step` numbers between those of two tokens. Either may be left
// out: without y nothing is written, without r nothing is read.
template <int N>
void given(const Pass& p, const float* r, int64_t r_step, float* h, float* u) {
    share(p.t, GRAIN, p.threads, 0, nullptr, [&](int64_t first, int64_t last, float*) {
        std::vector<float> row(N * p.d);
        for (int64_t token = first; token < last; token++) {
            const float* streams = streams_of<N>(p, token, h ? h + token * N * p.d : row.data());
            if (r) read_row<N>(p.d, streams, r + token * r_step, u + token * p.d);
        }
    });
}

template <int N>
void given_back(const Pass& p, const Back& b, const float* r, int64_t r_step, float* dr) {
    constexpr int64_t W = (N + 1) * N * LANES;
    std::vector<float> sums(W + N * LANES);
    share(p.t, GRAIN, p.threads, sums.size(), sums.data(), [&](int64_t first, int64_t last, float* own) {
        std::vector<float> row(N * p.d), dh(N * p.d);
        for (int64_t token = first; token < last; token++) {
            if (!r) {
                std::memcpy(dh.data(), b.more + token * N * p.d, sizeof(float) * N * p.d);
                streams_back<N>(p, b, token, dh.data(), own);
                continue;
            }
            const float* h = streams_of<N>(p, token, row.data());
            const float* du = b.du + token * p.d;
            for (int i = 0; i < N; i++) {
                const float* more = b.more ? b.more + (token * N + i) * p.d : nullptr;
                float weight = r[token * r_step + i];
                Vector dot = {};
                for (int64_t at = 0; at < p.d; at += LANES) {
                    Vector g = load(du + at), sum = weight * g;
                    if (more) sum += load(more + at);
                    dot += g * load(h + i * p.d + at);
                    store(dh.data() + i * p.d + at, sum);
                }
                if (r_step)
                    dr[token * r_step + i] = total(dot);
                else
                    store(own + W + i * LANES, load(own + W + i * LANES) + dot);
            }
            streams_back<N>(p, b, token, dh.data(), own);
        }
    });
    add_lanes<N>(p, b, sums.data());
    if (r && !r_step)
        for (int i = 0; i < N; i++) dr[i] = total(load(sums.data() + W + i * LANES));
}

// One token and stream of Hyper-Connections' coefficients: x normed, times each row of `rows`.
struct Normed {
    float mean, scale;
};

inline Normed moments(const float* x, int64_t d, bool centred, float eps) {
    Vector sum = {};
    if (centred)
        for (int64_t at = 0; at < d; at += LANES) sum += load(x + at);
    float mean = total(sum) / d;
    Vector squares = {};
    for (int64_t at = 0; at < d; at += LANES) {
        Vector v = load(x + at) - mean;
        squares += v * v;
    }
    return {mean, 1.0f / __builtin_sqrtf(total(squares) / d + eps)};
}

// The coefficients C (n, n + 2) = [A_m | A_r | B] of a token lie spread over `read` (n) and
// `write` (n + 1, n), which mix() takes.
template <int N>
void spread(const float* c, float* read, float* write) {
    for (int i = 0; i < N; i++) {
        read[i] = c[i * (N + 2)];
        for (int j = 0; j < N; j++) write[i * N + j] = c[i * (N + 2) + 1 + j];
        write[N * N + i] = c[i * (N + 2) + N + 1];
    }
}

template <int N>
void gather(const float* read, const float* write, float* c) {
    for (int i = 0; i < N; i++) {
        c[i * (N + 2)] = read[i];
        for (int j = 0; j < N; j++) c[i * (N + 2) + 1 + j] = write[i * N + j];
        c[i * (N + 2) + N + 1] = write[N * N + i];
    }
}

// The maps of Hyper-Connections' coefficients: C = constants + scales * tanh(rows x + offsets), where x is a
// normed stream without gain or bias, which have gone into `rows` (n + 2, d) and `offsets` (n + 2).
struct Maps {
    const float *rows, *offsets, *scales, *constants;
    int centred, bounded;
    float eps;
};

template <int N>
void dynamic(const Pass& p, const Maps& maps, float* activated, float* normed, float* read, float* write,
             float* h_out, float* u) {
    constexpr int C = N + 2, PADDED = (N * C + LANES - 1) / LANES * LANES;
    share(p.t, GRAIN, p.threads, 0, nullptr, [&](int64_t first, int64_t last, float*) {
        for (int64_t token = first; token < last; token++) {
            const float* h = streams_of<N>(p, token, h_out + token * N * p.d);
            float z[PADDED] = {}, c[N * C];
            for (int i = 0; i < N; i++) {
                const float* stream = h + i * p.d;
                Normed norm = moments(stream, p.d, maps.centred, maps.eps);
                Vector dot[C] = {};
                for (int64_t at = 0; at < p.d; at += LANES) {
                    Vector v = (load(stream + at) - norm.mean) * norm.scale;
                    for (int j = 0; j < C; j++) dot[j] += v * load(maps.rows + j * p.d + at);
                }
                for (int j = 0; j < C; j++) z[i * C + j] = total(dot[j]) + maps.offsets[j];
                normed[(token * N + i) * 2] = norm.mean;
                normed[(token * N + i) * 2 + 1] = norm.scale;
            }
            if (maps.bounded)
                for (int at = 0; at < PADDED; at += LANES) store(z + at, hyperbolic_tangent(load(z + at)));
            std::memcpy(activated + token * N * C, z, sizeof(float) * N * C);
            for (int i = 0; i < N; i++)
                for (int j = 0; j < C; j++)
                    c[i * C + j] = maps.constants[i * C + j] + maps.scales[j] * z[i * C + j];
            spread<N>(c, read + token * N, write + token * (N + 1) * N);
            read_row<N>(p.d, h, read + token * N, u + token * p.d);
        }
    });
}

// Sums over tokens, in this order: rows (n + 2, d), offsets (n + 2), scales (n + 2), constants (n, n + 2).
template <int N>
void dynamic_back(const Pass& p, const Back& b, const Maps& maps, const float* activated, const float* normed,
                  const float* read, const float* dwrite, float* sums) {
    constexpr int C = N + 2;
    const int64_t d = p.d, size = C * d + C + C + N * C, lanes = (N + 1) * N * LANES;
    std::vector<float> all(size + lanes);
    share(p.t, GRAIN, p.threads, size + lanes, all.data(), [&](int64_t first, int64_t last, float* own) {
        float *drows = own, *doffsets = own + C * d, *dscales = doffsets + C, *dconstants = dscales + C;
        std::vector<float> row(N * d), dh(N * d), normal(d);
        for (int64_t token = first; token < last; token++) {
            const float *h = streams_of<N>(p, token, row.data()), *g = b.du + token * d;
            float dread[N], dc[N * C];
            for (int i = 0; i < N; i++) {
                Vector dot = {};
                for (int64_t at = 0; at < d; at += LANES) dot += load(h + i * d + at) * load(g + at);
                dread[i] = total(dot);
            }
            gather<N>(dread, dwrite + token * (N + 1) * N, dc);
            for (int i = 0; i < N; i++) {
                const float* z = activated + (token * N + i) * C;
                float mean = normed[(token * N + i) * 2], scale = normed[(token * N + i) * 2 + 1];
                float dz[C];
                for (int j = 0; j < C; j++) {
                    float each = dc[i * C + j];
                    dconstants[i * C + j] += each;
                    dscales[j] += each * z[j];
                    dz[j] = each * maps.scales[j] * (maps.bounded ? 1.0f - z[j] * z[j] : 1.0f);
                    doffsets[j] += dz[j];
                }
                Vector sum = {}, along = {};
                float *dstream = dh.data() + i * d, *x = normal.data();
                for (int64_t at = 0; at < d; at += LANES) {
                    Vector v = (load(h + i * d + at) - mean) * scale, dv = {};
                    for (int j = 0; j < C; j++) {
                        float* drow = drows + j * d + at;
                        dv += dz[j] * load(maps.rows + j * d + at);
                        store(drow, load(drow) + dz[j] * v);
                    }
                    sum += dv;
                    along += dv * v;
                    store(x + at, v);
                    store(dstream + at, dv);
                }
                float centre = maps.centred ? total(sum) / d : 0.0f, slope = total(along) / d;
                float r = read[token * N + i];
                const float* more = b.more ? b.more + (token * N + i) * d : nullptr;
                for (int64_t at = 0; at < d; at += LANES) {
                    Vector each = (load(dstream + at) - centre - load(x + at) * slope) * scale + r * load(g + at);
                    if (more) each += load(more + at);
                    store(dstream + at, each);
                }
            }
            streams_back<N>(p, b, token, dh.data(), own + size);
        }
    });
    add_lanes<N>(p, b, all.data() + size);
    std::memcpy(sums, all.data(), sizeof(float) * size);
}

// gelu(x) = x P(x) and its derivative P(x) + x p(x), of the normal distribution P and density p. The error of P
// is below 1e-7 (Abramowitz and Stegun 7.1.26), that of a float.
inline void gelu(Vector x, Vector& value, Vector& slope) {
    Vector s = (x < Vector{} ? -x : x) * 0.70710678118654752f;
    Vector e = exponential(-s * s);
    Vector t = 1.0f / (1.0f + 0.3275911f * s);
    Vector tail = t * (0.254829592f + t * (-0.284496736f + t * (1.421413741f + t * (-1.453152027f + t * 1.061405429f))));
    tail = 0.5f * tail * e;
    Vector share = x < Vector{} ? tail : 1.0f - tail;
    value = x * share;
    slope = share + x * e * 0.39894228040143268f;
}

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

// Runs `call` with the constant NAME equal to `value`, which is 1 to 8.
#define WITH(NAME, value, call)                                                                \
    switch (value) {                                                                           \
        case 1: { constexpr int NAME = 1; call; break; }                                       \
        case 2: { constexpr int NAME = 2; call; break; }                                       \
        case 3: { constexpr int NAME = 3; call; break; }                                       \
        case 4: { constexpr int NAME = 4; call; break; }                                       \
        case 5: { constexpr int NAME = 5; call; break; }                                       \
        case 6: { constexpr int NAME = 6; call; break; }                                       \
        case 7: { constexpr int NAME = 7; call; break; }                                       \
        case 8: { constexpr int NAME = 8; call; break; }                                       \
    }

extern "C" {

void fints_given(int64_t t, int64_t d, int n, const float* x, const float* y, const float* w, int64_t step,
                 const float* r, int64_t r_step, float* h, float* u, int threads) {
    const Pass p{t, d, x, y, w, step, threads};
    WITH(N, n, given<N>(p, r, r_step, h, u))
}

void fints_given_back(int64_t t, int64_t d, int n, const float* x, const float* y, const float* w, int64_t step,
                      const float* r, int64_t r_step, const float* du, const float* more, float* dx, float* dy,
                      float* dw, float* dr, int threads) {
    const Pass p{t, d, x, y, w, step, threads};
    const Back b{du, more, dx, dy, dw};
    WITH(N, n, given_back<N>(p, b, r, r_step, dr))
}

void fints_dynamic(int64_t t, int64_t d, int n, const float* x, const float* y, const float* w, int64_t step,
                   const float* rows, const float* offsets, const float* scales, const float* constants,
                   int centred, int bounded, float eps, float* activated, float* normed, float* read,
                   float* write, float* h, float* u, int threads) {
    const Pass p{t, d, x, y, w, step, threads};
    const Maps maps{rows, offsets, scales, constants, centred, bounded, eps};
    WITH(N, n, dynamic<N>(p, maps, activated, normed, read, write, h, u))
}

void fints_dynamic_back(int64_t t, int64_t d, int n, const float* x, const float* y, const float* w,
                        int64_t step, const float* rows, const float* scales, int centred, int bounded,
                        const float* activated, const float* normed, const float* read, const float* du,
                        const float* dwrite, const float* more, float* dx, float* dy, float* dw, float* sums,
                        int threads) {
    const Pass p{t, d, x, y, w, step, threads};
    const Back b{du, more, dx, dy, dw};
    const Maps maps{rows, nullptr, scales, nullptr, centred, bounded, 0.0f};
    WITH(N, n, dynamic_back<N>(p, b, maps, activated, normed, read, dwrite, sums))
}

// value = gelu(z + bias) in place of z, and its slope; d columns.
void fints_gelu(int64_t t, int64_t d, float* z, const float* bias, float* slope, int threads) {
    share(t, GRAIN, threads, 0, nullptr, [&](int64_t first, int64_t last, float*) {
        for (int64_t token = first; token < last; token++)
            for (int64_t at = 0; at < d; at += LANES) {
                Vector value, by;
                gelu(load(z + token * d + at) + load(bias + at), value, by);
                store(z + token * d + at, value);
                store(slope + token * d + at, by);
            }
    });
}

// dz = dvalue * slope, and its sums over tokens.
void fints_gelu_back(int64_t t, int64_t d, const float* dvalue, const float* slope, float* dz, float* dbias,
                     int threads) {
    share(t, GRAIN, threads, d, dbias, [&](int64_t first, int64_t last, float* own) {
        for (int64_t token = first; token < last; token++)
            for (int64_t at = 0; at < d; at += LANES) {
                Vector each = load(dvalue + token * d + at) * load(slope + token * d + at);
                store(dz + token * d + at, each);
                store(own + at, load(own + at) + each);
            }
    });
}

void fints_manifold(int64_t t, int n, const float* logits, int iterations, float* read, float* write,
                    const float* dread, const float* dwrite, float* dlogits, int threads) {
    WITH(N, n, manifold<N>(t, logits, iterations, read, write, dread, dwrite, dlogits, threads))
}

}  // extern "C"

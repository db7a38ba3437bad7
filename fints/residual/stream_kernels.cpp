// Hyper-Connections on a CPU: one pass over the streams writes what the last branch returned, and reads and norms
// what the next one gets.
//
// Written in vectors of 16 floats, which the compiler lowers to what the machine has. All arrays are
// float32, a token's streams lie side by side, and widths are multiples of 16. The same number of threads
// gives the same bits.
//
// Shapes: t tokens, n streams, d width.

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <vector>

#include "elementary.h"
#include "norm.h"
#include "share.h"
#include "streams.h"
#include "vectors.h"

namespace {

// Writes, then reads with the given weights r, `r_step` numbers between those of two tokens, and norms. Either may
// be left out: without y nothing is written, without r nothing is read. `kept` has two numbers a token.
template <int N>
void given(const Pass& p, const float* r, int64_t r_step, const Norm& norm, float* kept, float* h, float* z) {
    share(p.t, GRAIN, p.threads, 0, nullptr, [&](int64_t first, int64_t last, float*) {
        std::vector<float> row(N * p.d), u(p.d);
        for (int64_t token = first; token < last; token++) {
            const float* streams = streams_of<N>(p, token, h ? h + token * N * p.d : row.data());
            if (!r) continue;
            read_row<N>(p.d, streams, r + token * r_step, u.data());
            norm_row(norm, p.d, u.data(), kept + 2 * token, z + token * p.d);
        }
    });
}

// From dz, in `b.du`. Sums over tokens, in this order: the norm's gain (d) and bias (d).
template <int N>
void given_back(const Pass& p, const Back& b, const float* r, int64_t r_step, const Norm& norm, const float* kept,
                float* dr, float* sums) {
    constexpr int64_t W = (N + 1) * N * LANES, R = N * LANES;
    std::vector<float> all(W + R + 2 * p.d);
    share(p.t, GRAIN, p.threads, all.size(), all.data(), [&](int64_t first, int64_t last, float* own) {
        std::vector<float> row(N * p.d), dh(N * p.d), u(p.d), du(p.d);
        for (int64_t token = first; token < last; token++) {
            if (!r) {
                std::memcpy(dh.data(), b.more + token * N * p.d, sizeof(float) * N * p.d);
                streams_back<N>(p, b, token, dh.data(), own);
                continue;
            }
            const float* h = streams_of<N>(p, token, row.data());
            read_row<N>(p.d, h, r + token * r_step, u.data());
            norm_row_back(norm, p.d, u.data(), kept + 2 * token, b.du + token * p.d, du.data(), own + W + R,
                          own + W + R + p.d);
            for (int i = 0; i < N; i++) {
                const float* more = b.more ? b.more + (token * N + i) * p.d : nullptr;
                float weight = r[token * r_step + i];
                Vector dot = {};
                for (int64_t at = 0; at < p.d; at += LANES) {
                    Vector g = load(du.data() + at), sum = weight * g;
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
    add_lanes<N>(p, b, all.data());
    if (r && !r_step)
        for (int i = 0; i < N; i++) dr[i] = total(load(all.data() + W + i * LANES));
    std::memcpy(sums, all.data() + W + R, sizeof(float) * 2 * p.d);
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

// What Hyper-Connections' coefficients follow from, named as in `DynamicHyperConnections`, and the norm N_dyn.
struct Coefficients {
    const float *A_m, *A_r, *B, *W, *s_alpha, *s_beta;
    Norm norm;
    int bounded;
};

// The maps of the coefficients: C = constants + scales * tanh(rows x + offsets), where x is a normed stream without
// gain or bias, which have gone into `rows` (n + 2, d) and `offsets` (n + 2): (x g + b) W = x (g W) + b W.
template <int N>
struct Maps {
    static constexpr int C = N + 2;
    const Coefficients& from;
    int64_t d;
    std::vector<float> rows;
    float offsets[C] = {}, scales[C], constants[N * C];

    Maps(const Coefficients& from, int64_t d) : from(from), d(d), rows(C * d) {
        for (int64_t k = 0; k < d; k++)
            for (int j = 0; j < C; j++) {
                rows[j * d + k] = from.norm.gain[k] * from.W[k * C + j];
                if (from.norm.bias) offsets[j] += from.norm.bias[k] * from.W[k * C + j];
            }
        for (int j = 0; j < C; j++) scales[j] = j <= N ? *from.s_alpha : *from.s_beta;
        for (int i = 0; i < N; i++) {
            constants[i * C] = from.A_m[i];
            for (int j = 0; j < N; j++) constants[i * C + 1 + j] = from.A_r[i * N + j];
            constants[i * C + N + 1] = from.B[i];
        }
    }

    // From the gradients of rows, offsets, scales and constants to those of A_m, A_r, B, W, s_alpha, s_beta, gain
    // and bias, one after another; the last is left out where there is none.
    void back(const float* drows, const float* doffsets, const float* dscales, const float* dconstants,
              float* found) const {
        float *dA_m = found, *dA_r = dA_m + N, *dB = dA_r + N * N, *dW = dB + N, *ds = dW + d * C, *dgain = ds + 2,
              *dbias = dgain + d;
        for (int i = 0; i < N; i++) {
            dA_m[i] = dconstants[i * C];
            for (int j = 0; j < N; j++) dA_r[i * N + j] = dconstants[i * C + 1 + j];
            dB[i] = dconstants[i * C + N + 1];
        }
        ds[0] = 0.0f;
        for (int j = 0; j <= N; j++) ds[0] += dscales[j];
        ds[1] = dscales[N + 1];
        for (int64_t k = 0; k < d; k++) {
            float gain = 0.0f, bias = 0.0f;
            for (int j = 0; j < C; j++) {
                const float w = from.W[k * C + j];
                gain += w * drows[j * d + k];
                bias += w * doffsets[j];
                dW[k * C + j] = from.norm.gain[k] * drows[j * d + k];
                if (from.norm.bias) dW[k * C + j] += from.norm.bias[k] * doffsets[j];
            }
            dgain[k] = gain;
            if (from.norm.bias) dbias[k] = bias;
        }
    }
};

// `activated` (t, n, n + 2), `normed` (t, n, 2), `read` (t, n) and `kept` (t, 2) are for the way back.
template <int N>
void dynamic(const Pass& p, const Coefficients& given, const Norm& norm, float* activated, float* normed, float* read,
             float* kept, float* write, float* h_out, float* z_out) {
    constexpr int C = N + 2, PADDED = (N * C + LANES - 1) / LANES * LANES;
    const Maps<N> maps(given, p.d);
    share(p.t, GRAIN, p.threads, 0, nullptr, [&](int64_t first, int64_t last, float*) {
        std::vector<float> u(p.d);
        for (int64_t token = first; token < last; token++) {
            const float* h = streams_of<N>(p, token, h_out + token * N * p.d);
            float z[PADDED] = {}, c[N * C];
            for (int i = 0; i < N; i++) {
                const float* stream = h + i * p.d;
                Normed own = moments(stream, p.d, given.norm.centred, given.norm.eps);
                Vector dot[C] = {};
                for (int64_t at = 0; at < p.d; at += LANES) {
                    Vector v = (load(stream + at) - own.mean) * own.scale;
                    for (int j = 0; j < C; j++) dot[j] += v * load(maps.rows.data() + j * p.d + at);
                }
                for (int j = 0; j < C; j++) z[i * C + j] = total(dot[j]) + maps.offsets[j];
                normed[(token * N + i) * 2] = own.mean;
                normed[(token * N + i) * 2 + 1] = own.scale;
            }
            if (given.bounded)
                for (int at = 0; at < PADDED; at += LANES) store(z + at, hyperbolic_tangent(load(z + at)));
            std::memcpy(activated + token * N * C, z, sizeof(float) * N * C);
            for (int i = 0; i < N; i++)
                for (int j = 0; j < C; j++)
                    c[i * C + j] = maps.constants[i * C + j] + maps.scales[j] * z[i * C + j];
            spread<N>(c, read + token * N, write + token * (N + 1) * N);
            read_row<N>(p.d, h, read + token * N, u.data());
            norm_row(norm, p.d, u.data(), kept + 2 * token, z_out + token * p.d);
        }
    });
}

// From dz, in `b.du`. Sums over tokens, in this order: the branch norm's gain (d) and bias (d), then as `Maps::back`.
template <int N>
void dynamic_back(const Pass& p, const Back& b, const Coefficients& given, const Norm& norm, const float* activated,
                  const float* normed, const float* read, const float* kept, const float* dwrite, float* sums) {
    // SMALL sums have one term a token: offsets, scales, constants. Sixteen of each take turns, since one that adds up
    // all tokens one after another loses digits.
    constexpr int C = N + 2, SMALL = C + C + N * C;
    const Maps<N> maps(given, p.d);
    const int64_t d = p.d, size = 2 * d + C * d + SMALL, lanes = (N + 1) * N * LANES;
    std::vector<float> all(size + lanes);
    share(p.t, GRAIN, p.threads, size + lanes, all.data(), [&](int64_t first, int64_t last, float* own) {
        float *drows = own + 2 * d, *small = drows + C * d, turns[LANES][SMALL] = {};
        std::vector<float> row(N * d), dh(N * d), normal(d), u(d), du(d);
        const float *rows = maps.rows.data(), *g = du.data();
        for (int64_t token = first; token < last; token++) {
            const float* h = streams_of<N>(p, token, row.data());
            read_row<N>(d, h, read + token * N, u.data());
            norm_row_back(norm, d, u.data(), kept + 2 * token, b.du + token * d, du.data(), own, own + d);
            float dread[N], dc[N * C], *doffsets = turns[token % LANES], *dscales = doffsets + C,
                                       *dconstants = dscales + C;
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
                    dz[j] = each * maps.scales[j] * (given.bounded ? 1.0f - z[j] * z[j] : 1.0f);
                    doffsets[j] += dz[j];
                }
                Vector sum = {}, along = {};
                float *dstream = dh.data() + i * d, *x = normal.data();
                for (int64_t at = 0; at < d; at += LANES) {
                    Vector v = (load(h + i * d + at) - mean) * scale, dv = {};
                    for (int j = 0; j < C; j++) {
                        float* drow = drows + j * d + at;
                        dv += dz[j] * load(rows + j * d + at);
                        store(drow, load(drow) + dz[j] * v);
                    }
                    sum += dv;
                    along += dv * v;
                    store(x + at, v);
                    store(dstream + at, dv);
                }
                float centre = given.norm.centred ? total(sum) / d : 0.0f, slope = total(along) / d;
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
        for (const float* each : turns)
            for (int k = 0; k < SMALL; k++) small[k] += each[k];
    });
    add_lanes<N>(p, b, all.data() + size);
    std::memcpy(sums, all.data(), sizeof(float) * 2 * d);
    const float *drows = all.data() + 2 * d, *doffsets = drows + C * d;
    maps.back(drows, doffsets, doffsets + C, doffsets + 2 * C, sums + 2 * d);
}

}  // namespace

extern "C" {

void fints_given(int64_t t, int64_t d, int n, const float* x, const float* y, const float* w, int64_t step,
                 const float* r, int64_t r_step, const float* gain, const float* bias, int centred, float eps,
                 float* kept, float* h, float* z, int threads) {
    const Pass p{t, d, x, y, w, step, threads};
    const Norm norm{gain, bias, centred, eps};
    WITH(N, n, given<N>(p, r, r_step, norm, kept, h, z))
}

void fints_given_back(int64_t t, int64_t d, int n, const float* x, const float* y, const float* w, int64_t step,
                      const float* r, int64_t r_step, const float* gain, const float* bias, int centred, float eps,
                      const float* kept, const float* dz, const float* more, float* dx, float* dy, float* dw,
                      float* dr, float* sums, int threads) {
    const Pass p{t, d, x, y, w, step, threads};
    const Back b{dz, more, dx, dy, dw};
    const Norm norm{gain, bias, centred, eps};
    WITH(N, n, given_back<N>(p, b, r, r_step, norm, kept, dr, sums))
}

void fints_dynamic(int64_t t, int64_t d, int n, const float* x, const float* y, const float* w, int64_t step,
                   const float* A_m, const float* A_r, const float* B, const float* W, const float* s_alpha,
                   const float* s_beta, const float* dynamic_gain, const float* dynamic_bias, float dynamic_eps,
                   int bounded, const float* gain, const float* bias, int centred, float eps, float* activated,
                   float* normed, float* read, float* kept, float* write, float* h, float* z, int threads) {
    const Pass p{t, d, x, y, w, step, threads};
    const Coefficients from{A_m, A_r, B, W, s_alpha, s_beta, {dynamic_gain, dynamic_bias, centred, dynamic_eps}, bounded};
    const Norm norm{gain, bias, centred, eps};
    WITH(N, n, dynamic<N>(p, from, norm, activated, normed, read, kept, write, h, z))
}

void fints_dynamic_back(int64_t t, int64_t d, int n, const float* x, const float* y, const float* w, int64_t step,
                        const float* A_m, const float* A_r, const float* B, const float* W, const float* s_alpha,
                        const float* s_beta, const float* dynamic_gain, const float* dynamic_bias,
                        float dynamic_eps, int bounded, const float* gain, const float* bias, int centred, float eps,
                        const float* activated, const float* normed, const float* read, const float* kept,
                        const float* dz, const float* dwrite, const float* more, float* dx, float* dy, float* dw,
                        float* sums, int threads) {
    const Pass p{t, d, x, y, w, step, threads};
    const Back b{dz, more, dx, dy, dw};
    const Coefficients from{A_m, A_r, B, W, s_alpha, s_beta, {dynamic_gain, dynamic_bias, centred, dynamic_eps}, bounded};
    const Norm norm{gain, bias, centred, eps};
    WITH(N, n, dynamic_back<N>(p, b, from, norm, activated, normed, read, kept, dwrite, sums))
}

}  // extern "C"

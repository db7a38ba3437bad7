// Hyper-Connections on a CPU: one pass over the streams writes what the last branch returned, and reads what the
// next one gets.
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
#include "share.h"
#include "streams.h"
#include "vectors.h"

namespace {

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

}  // namespace

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

}  // extern "C"

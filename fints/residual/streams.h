// The streams of a token: written, read, and both on the way back.
//
// Shapes: t tokens, n streams, d width. A token's streams lie side by side; d is a multiple of 16.

#pragma once

#include <cstdint>
#include <cstring>

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

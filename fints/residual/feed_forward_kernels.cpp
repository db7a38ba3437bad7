// The activation of a feed-forward on a CPU, with the bias before it; and whole feed-forwards of several networks at
// once, their products included.
//
// All arrays are float32; d is a multiple of 16. The same number of threads gives the same bits, and of several
// networks each the same whatever the others and the number of threads.
//
// Shapes: t tokens, d columns; of several networks: `members` of them, t tokens each, d width, h hidden.

#include <algorithm>
#include <cstdint>
#include <vector>

#include "elementary.h"
#include "products.h"
#include "share.h"
#include "vectors.h"

namespace {

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

// One network's feed-forward y = W_2 gelu(W_1 u + b_1) + b_2; W_1 (h, d), W_2 (d, h).
struct FeedForward {
    int64_t t, d, h;
    const float *u, *w_1, *b_1, *w_2, *b_2;
};

void feed_forward(const FeedForward& f, float* y) {
    std::vector<float> first(f.d * f.h), second(f.d * f.h), hidden(ROWS * f.h);
    transposed(f.h, f.d, f.w_1, first.data());
    transposed(f.d, f.h, f.w_2, second.data());
    for (int64_t row = 0; row < f.t; row += ROWS) {
        const int64_t count = std::min(ROWS, f.t - row);
        multiply(count, f.d, f.h, f.u + row * f.d, first.data(), f.b_1, hidden.data());
        for (int64_t at = 0; at < count * f.h; at += LANES) {
            Vector value, slope;
            gelu(load(hidden.data() + at), value, slope);
            store(hidden.data() + at, value);
        }
        multiply(count, f.h, f.d, hidden.data(), second.data(), f.b_2, y + row * f.d);
    }
}

// du and the gradients of all four, each laid out as what it is of. The hidden numbers are made again: to keep them
// would cost more, since they go to memory and back.
void feed_forward_back(const FeedForward& f, const float* dy, float* du, float* dw_1, float* db_1, float* dw_2,
                       float* db_2) {
    std::vector<float> first(f.d * f.h), value(ROWS * f.h), slope(ROWS * f.h), dz(ROWS * f.h);
    transposed(f.h, f.d, f.w_1, first.data());
    std::fill(dw_1, dw_1 + f.d * f.h, 0.0f);
    std::fill(dw_2, dw_2 + f.d * f.h, 0.0f);
    std::fill(db_1, db_1 + f.h, 0.0f);
    std::fill(db_2, db_2 + f.d, 0.0f);
    for (int64_t row = 0; row < f.t; row += ROWS) {
        const int64_t count = std::min(ROWS, f.t - row);
        const float *u = f.u + row * f.d, *g = dy + row * f.d;
        multiply(count, f.d, f.h, u, first.data(), f.b_1, value.data());
        multiply(count, f.d, f.h, g, f.w_2, nullptr, dz.data());
        for (int64_t at = 0; at < count * f.h; at += LANES) {
            Vector each, by;
            gelu(load(value.data() + at), each, by);
            store(value.data() + at, each);
            store(dz.data() + at, load(dz.data() + at) * by);
        }
        add_outer(count, f.d, f.h, g, value.data(), dw_2);
        add_outer(count, f.h, f.d, dz.data(), u, dw_1);
        add_rows(count, f.d, g, db_2);
        add_rows(count, f.h, dz.data(), db_1);
        multiply(count, f.h, f.d, dz.data(), f.w_1, nullptr, du + row * f.d);
    }
}

}  // namespace

extern "C" {

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

// Feed-forwards of several networks. The parameters of one lie `step` after those of the one before; all else is
// packed, gradients too.
void fints_feed_forwards(int64_t members, int64_t t, int64_t d, int64_t h, int64_t step, const float* u,
                         const float* w_1, const float* b_1, const float* w_2, const float* b_2, float* y,
                         int threads) {
#pragma omp parallel for num_threads(std::min<int64_t>(threads, members)) schedule(static, 1)
    for (int64_t k = 0; k < members; k++)
        feed_forward({t, d, h, u + k * t * d, w_1 + k * step, b_1 + k * step, w_2 + k * step, b_2 + k * step},
                     y + k * t * d);
}

void fints_feed_forwards_back(int64_t members, int64_t t, int64_t d, int64_t h, int64_t step, const float* u,
                              const float* w_1, const float* b_1, const float* w_2, const float* b_2, const float* dy,
                              float* du, float* dw_1, float* db_1, float* dw_2, float* db_2, int threads) {
#pragma omp parallel for num_threads(std::min<int64_t>(threads, members)) schedule(static, 1)
    for (int64_t k = 0; k < members; k++)
        feed_forward_back({t, d, h, u + k * t * d, w_1 + k * step, b_1 + k * step, w_2 + k * step, b_2 + k * step},
                          dy + k * t * d, du + k * t * d, dw_1 + k * d * h, db_1 + k * h, dw_2 + k * d * h,
                          db_2 + k * d);
}

}  // extern "C"

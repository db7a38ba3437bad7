// The activation of a feed-forward on a CPU, with the bias before it.
//
// All arrays are float32; d is a multiple of 16. The same number of threads gives the same bits.
//
// Shapes: t tokens, d columns.

#include <cstdint>

#include "elementary.h"
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

}  // extern "C"

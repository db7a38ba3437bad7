// Elementary functions of vectors.

#pragma once

#include <cstdint>
#include <cstring>

#include "vectors.h"

namespace {

typedef int32_t Integers __attribute__((vector_size(4 * LANES)));

inline Vector largest(Vector a, Vector b) { return a > b ? a : b; }

// Cephes' polynomials: within 2 units in the last place.
inline Vector exponential(Vector x) {
    // So put that NaN stays NaN.
    x = x < fill(-87.0f) ? fill(-87.0f) : x;
    x = x > fill(88.0f) ? fill(88.0f) : x;
    const Vector shift = fill(12582912.0f);  // 1.5 * 2^23: adding it rounds to a whole number
    Vector whole = (x * 1.44269504088896341f + shift) - shift;
    Vector r = x - whole * 0.693359375f;
    r = r + whole * 2.12194440e-4f;
    Vector p = fill(1.9875691500e-4f);
    p = p * r + 1.3981999507e-3f;
    p = p * r + 8.3334519073e-3f;
    p = p * r + 4.1665795894e-2f;
    p = p * r + 1.6666665459e-1f;
    p = p * r + 5.0000001201e-1f;
    p = p * r * r + r + 1.0f;
    Integers exponent = (__builtin_convertvector(whole, Integers) + 127) << 23;
    Vector power;
    std::memcpy(&power, &exponent, sizeof power);
    return p * power;
}

// Natural logarithm of x >= 1, as sums of exponentials less their largest are.
inline Vector logarithm(Vector x) {
    Integers bits;
    std::memcpy(&bits, &x, sizeof bits);
    Integers exponent = (bits >> 23) - 126;
    bits = (bits & 0x007fffff) | 0x3f000000;
    Vector f;
    std::memcpy(&f, &bits, sizeof f);
    Integers low = f < fill(0.707106781186547524f);
    exponent = low ? exponent - 1 : exponent;
    f = (low ? f + f : f) - 1.0f;
    Vector p = fill(7.0376836292e-2f);
    p = p * f - 1.1514610310e-1f;
    p = p * f + 1.1676998740e-1f;
    p = p * f - 1.2420140846e-1f;
    p = p * f + 1.4249322787e-1f;
    p = p * f - 1.6668057665e-1f;
    p = p * f + 2.0000714765e-1f;
    p = p * f - 2.4999993993e-1f;
    p = p * f + 3.3333331174e-1f;
    Vector e = __builtin_convertvector(exponent, Vector);
    Vector square = f * f;
    return f + (f * square * p - e * 2.12194440e-4f - 0.5f * square) + e * 0.693359375f;
}

inline Vector hyperbolic_tangent(Vector x) { return 1.0f - 2.0f / (exponential(x + x) + 1.0f); }

inline Vector logistic(Vector x) { return 1.0f / (exponential(-x) + 1.0f); }

}  // namespace

// Gated streams on a CPU, each sublayer one pass: it writes what the branch before returned, computes the gates from
// the streams, reads through them and norms what the next branch reads.
//
// All arrays are float32, a token's streams lie side by side, and widths are multiples of 16. The same number of
// threads gives the same bits.
//
// Shapes: t tokens, n streams, d width.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <vector>

#include "elementary.h"
#include "norm.h"
#include "share.h"
#include "vectors.h"

namespace {

// How streams are read; `fints.residual.gated_functions` numbers them so.
enum Read { SIGMOID, CONVEX, SOFTMAX, MEAN };

// What a pass writes first: H_i = x_i + w_i y, or x_i + w_i (y - x_i) where it is a lerp. Without y it is x.
struct Written {
    int64_t t, d;
    const float *x, *y, *w;
    int lerp, threads;
};

template <int N>
inline const float* written_streams(const Written& p, int64_t token, float* row) {
    const float* x = p.x + token * N * p.d;
    if (!p.y) return x;
    const float *y = p.y + token * p.d, *w = p.w + token * N;
    for (int64_t at = 0; at < p.d; at += LANES) {
        const Vector v = load(y + at);
        for (int i = 0; i < N; i++) {
            const Vector h = load(x + i * p.d + at);
            store(row + i * p.d + at, h + w[i] * (p.lerp ? v - h : v));
        }
    }
    return row;
}

// How the gates follow from the streams; W and b as the module keeps them. W has a column for reading and one for
// writing, b a row for each. A pass that reads the mean has none of them.
struct Gates {
    const float *W, *b;
    int read;
    float factor, eps;
};

inline std::vector<float> columns(const float* W, int64_t d) {
    std::vector<float> apart(2 * d);
    for (int64_t f = 0; W && f < d; f++) {
        apart[f] = W[2 * f];
        apart[d + f] = W[2 * f + 1];
    }
    return apart;
}

// What a token's gates are: lanes 0 ... N - 1 belong to reading, N ... 2 N - 1 to writing.
struct Kept {
    float dots[LANES];   // factor * w . H_i / rms(H_i)
    float gates[LANES];  // weights of reading, then sigmoids of writing
    float scale[LANES];  // one over rms(H_i), twice
};

template <int N>
inline void gates_of(const Gates& maps, const float* w, const float* biases, int64_t d, const float* h, Kept& kept) {
    Vector sums[3 * N] = {};
    for (int64_t at = 0; at < d; at += LANES) {
        const Vector by_read = load(w + at), by_write = load(w + d + at);
        for (int i = 0; i < N; i++) {
            const Vector v = load(h + i * d + at);
            sums[i] += v * by_read;
            sums[N + i] += v * by_write;
            sums[2 * N + i] += v * v;
        }
    }
    float found[padded(3 * N) + LANES];
    totals<3 * N>(sums, found);
    float squares[LANES] = {}, logits[LANES] = {};
    for (int i = 0; i < 2 * N; i++) squares[i] = found[2 * N + i % N];
    for (int i = 0; i < LANES; i++) kept.scale[i] = 1.0f / __builtin_sqrtf(squares[i] / d + maps.eps);
    for (int i = 0; i < 2 * N; i++) logits[i] = kept.dots[i] = maps.factor * found[i] * kept.scale[i];
    const Vector z = load(logits) + load(biases);
    store(kept.gates, logistic(z));
    if (maps.read == CONVEX) {
        float sum = 0.0f;
        for (int i = 0; i < N; i++) sum += kept.gates[i];
        for (int i = 0; i < N; i++) kept.gates[i] /= sum;
    } else if (maps.read == SOFTMAX) {
        float most = z[0], sum = 0.0f, powers[LANES];
        for (int i = 1; i < N; i++) most = std::max(most, z[i]);
        store(powers, exponential(z - most));
        for (int i = 0; i < N; i++) sum += powers[i];
        for (int i = 0; i < N; i++) kept.gates[i] = powers[i] / sum;
    }
}

template <int N>
inline void read_streams(int64_t d, const float* h, const float* r, float* u) {
    for (int64_t at = 0; at < d; at += LANES) {
        Vector sum = {};
        for (int i = 0; i < N; i++) sum += r[i] * load(h + i * d + at);
        store(u + at, sum);
    }
}

template <int N>
void gated(const Written& p, const Gates& maps, const Norm& norm, float* saved, float* next_w, float* kept_of_norm,
           float* h_out, float* z) {
    const int64_t d = p.d;
    const std::vector<float> w = columns(maps.W, d);
    float biases[LANES] = {};
    if (maps.read != MEAN) std::memcpy(biases, maps.b, sizeof(float) * 2 * N);
    const float factor = maps.read == SOFTMAX ? 1.0f : 2.0f;
    share(p.t, GRAIN, p.threads, 0, nullptr, [&](int64_t first, int64_t last, float*) {
        std::vector<float> u(d), row(N * d);
        Kept kept = {};
        for (int i = 0; i < N; i++) kept.gates[i] = 1.0f / N;
        for (int64_t token = first; token < last; token++) {
            const float* h = written_streams<N>(p, token, h_out ? h_out + token * N * d : row.data());
            if (maps.read != MEAN) {
                gates_of<N>(maps, w.data(), biases, d, h, kept);
                float* own = saved + token * 5 * N;
                std::memcpy(own, kept.dots, sizeof(float) * 2 * N);
                std::memcpy(own + 2 * N, kept.gates, sizeof(float) * 2 * N);
                std::memcpy(own + 4 * N, kept.scale, sizeof(float) * N);
                for (int i = 0; i < N; i++) next_w[token * N + i] = factor * kept.gates[N + i];
            }
            read_streams<N>(d, h, kept.gates, u.data());
            norm_row(norm, d, u.data(), kept_of_norm + token * 2, z + token * d);
        }
    });
}

// The backward pass of Written: `more` is what later uses of the written streams send back, and may lie where dx
// does, as a token's are read before they are written.
struct Unwritten {
    const float* more;
    float *dx, *dy, *dw;
};

template <int N>
inline void streams_back(const Written& p, const Unwritten& out, int64_t token, const float* dh) {
    const int64_t d = p.d;
    float* dx = out.dx + token * N * d;
    if (!p.y) {
        std::memcpy(dx, dh, sizeof(float) * N * d);
        return;
    }
    const float *x = p.x + token * N * d, *y = p.y + token * d, *w = p.w + token * N;
    Vector dots[N] = {};
    for (int64_t at = 0; at < d; at += LANES) {
        const Vector v = load(y + at);
        Vector sum = {};
        for (int i = 0; i < N; i++) {
            const Vector g = load(dh + i * d + at);
            sum += w[i] * g;
            dots[i] += g * (p.lerp ? v - load(x + i * d + at) : v);
            store(dx + i * d + at, p.lerp ? g - w[i] * g : g);
        }
        store(out.dy + token * d + at, sum);
    }
    float found[padded(N)];
    totals<N>(dots, found);
    std::memcpy(out.dw + token * N, found, sizeof(float) * N);
}

// Gradients of W, b and the norm.
struct Gradients {
    float *W, *b, *gain, *bias;
};

template <int N>
void gated_back(const Written& p, const Gates& maps, const Norm& norm, const float* saved, const float* kept_of_norm,
                const float* dz, const float* dnext_w, const Unwritten& out, const Gradients& gradients) {
    const int64_t d = p.d;
    const std::vector<float> w = columns(maps.W, d);
    const float factor = maps.read == SOFTMAX ? 1.0f : 2.0f;
    std::vector<float> all(4 * d + LANES, 0.0f);
    share(p.t, GRAIN, p.threads, all.size(), all.data(), [&](int64_t first, int64_t last, float* own) {
        float *dgain = own, *dbias = own + d, *dw_read = own + 2 * d, *dw_write = own + 3 * d, *db = own + 4 * d;
        std::vector<float> scratch((2 * N + 2) * d);
        float *row = scratch.data(), *dh = row + N * d, *u = dh + N * d, *du = u + d;
        float read[N], dread[padded(N)];
        std::fill(read, read + N, 1.0f / N);
        for (int64_t token = first; token < last; token++) {
            const float *h = written_streams<N>(p, token, row), *kept = saved + token * 5 * N;
            const float *gates = kept + 2 * N, *scale = kept + 4 * N;
            if (maps.read != MEAN) std::memcpy(read, gates, sizeof read);
            read_streams<N>(d, h, read, u);
            norm_row_back(norm, d, u, kept_of_norm + token * 2, dz + token * d, du, dgain, dbias);
            float to_read[N] = {}, to_write[N] = {}, to_self[N] = {};
            if (maps.read != MEAN) {
                Vector dots[N] = {};
                for (int64_t at = 0; at < d; at += LANES) {
                    const Vector g = load(du + at);
                    for (int i = 0; i < N; i++) dots[i] += g * load(h + i * d + at);
                }
                totals<N>(dots, dread);
                float mean = 0.0f, sum = 1.0f;
                if (maps.read != SIGMOID)
                    for (int i = 0; i < N; i++) mean += read[i] * dread[i];
                if (maps.read == CONVEX) {
                    // The sigmoids s_i are read_i times their sum, which kept logits give back.
                    sum = 0.0f;
                    for (int i = 0; i < N; i++) sum += 1.0f / (1.0f + std::exp(-(kept[i] + maps.b[i])));
                }
                for (int i = 0; i < N; i++) {
                    const float r = read[i], s = gates[N + i];
                    // d(read)/dp: of a sigmoid r (1 - r), of a softmax r (1 - mean), of s / sum(s) its quotient rule.
                    float dp = r * (dread[i] - mean);
                    if (maps.read == SIGMOID)
                        dp *= 1.0f - r;
                    else if (maps.read == CONVEX)
                        dp *= 1.0f - r * sum;
                    const float dq = factor * dnext_w[token * N + i] * s * (1.0f - s);
                    db[i] += dp;
                    db[N + i] += dq;
                    to_read[i] = maps.factor * dp * scale[i];
                    to_write[i] = maps.factor * dq * scale[i];
                    to_self[i] = -(dp * kept[i] + dq * kept[N + i]) * scale[i] * scale[i] / d;
                }
            }
            const float* more = out.more ? out.more + token * N * d : nullptr;
            for (int64_t at = 0; at < d; at += LANES) {
                const Vector g = load(du + at), by_read = load(w.data() + at), by_write = load(w.data() + d + at);
                Vector of_read = load(dw_read + at), of_write = load(dw_write + at);
                for (int i = 0; i < N; i++) {
                    const Vector v = load(h + i * d + at);
                    of_read += to_read[i] * v;
                    of_write += to_write[i] * v;
                    Vector sum = read[i] * g + to_read[i] * by_read + to_write[i] * by_write + to_self[i] * v;
                    if (more) sum += load(more + i * d + at);
                    store(dh + i * d + at, sum);
                }
                store(dw_read + at, of_read);
                store(dw_write + at, of_write);
            }
            streams_back<N>(p, out, token, dh);
        }
    });
    if (norm.gain) std::memcpy(gradients.gain, all.data(), sizeof(float) * d);
    if (norm.bias) std::memcpy(gradients.bias, all.data() + d, sizeof(float) * d);
    if (maps.read == MEAN) return;
    for (int64_t f = 0; f < d; f++) {
        gradients.W[2 * f] = all[2 * d + f];
        gradients.W[2 * f + 1] = all[3 * d + f];
    }
    std::memcpy(gradients.b, all.data() + 4 * d, sizeof(float) * 2 * N);
}

}  // namespace

// Runs `call` with the constant N equal to `value`, which is 1 to 8.
#define WITH(value, call)                                \
    switch (value) {                                     \
        case 1: { constexpr int N = 1; call; break; }    \
        case 2: { constexpr int N = 2; call; break; }    \
        case 3: { constexpr int N = 3; call; break; }    \
        case 4: { constexpr int N = 4; call; break; }    \
        case 5: { constexpr int N = 5; call; break; }    \
        case 6: { constexpr int N = 6; call; break; }    \
        case 7: { constexpr int N = 7; call; break; }    \
        case 8: { constexpr int N = 8; call; break; }    \
    }

extern "C" {

void fints_gated(int64_t t, int64_t d, int n, const float* x, const float* y, const float* w, int lerp,
                 const float* W, const float* b, int read, float factor, float eps, const float* norm_gain,
                 const float* norm_bias, int centred, float norm_eps, float* saved, float* next_w, float* kept,
                 float* h, float* z, int threads) {
    const Written p{t, d, x, y, w, lerp, threads};
    const Gates maps{W, b, read, factor, eps};
    const Norm norm{norm_gain, norm_bias, centred, norm_eps};
    WITH(n, gated<N>(p, maps, norm, saved, next_w, kept, h, z))
}

void fints_gated_back(int64_t t, int64_t d, int n, const float* x, const float* y, const float* w, int lerp,
                      const float* W, const float* b, int read, float factor, float eps, const float* norm_gain,
                      const float* norm_bias, int centred, float norm_eps, const float* saved, const float* kept,
                      const float* dz, const float* dnext_w, const float* more, float* dx, float* dy, float* dw,
                      float* dW, float* db, float* dgain, float* dbias, int threads) {
    const Written p{t, d, x, y, w, lerp, threads};
    const Gates maps{W, b, read, factor, eps};
    const Norm norm{norm_gain, norm_bias, centred, norm_eps};
    const Unwritten out{more, dx, dy, dw};
    const Gradients gradients{dW, db, dgain, dbias};
    WITH(n, gated_back<N>(p, maps, norm, saved, kept, dz, dnext_w, out, gradients))
}

}  // extern "C"

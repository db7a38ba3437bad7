// Frac-Connections on a CPU, each sublayer one pass: it writes what the branch before returned, computes the
// coefficients from the fractions, mixes them and norms what the next branch reads.
//
// All arrays are float32 and fractions have a multiple of 16 features. The same number of threads gives the same bits.
//
// Shapes: t tokens, m fractions of `part` features, d = m part.

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <vector>

#include "elementary.h"
#include "norm.h"
#include "share.h"
#include "vectors.h"

namespace {

// Row i is what fraction i gives: [Y_i1 ... Y_im | A_i1 ... A_im | B_i], padded to whole vectors.
template <int M>
struct Row {
    static constexpr int SIZE = 2 * M + 1, PADDED = padded(SIZE), VECTORS = PADDED / LANES;
};

// What a pass writes first: H_i = x_i + b_i y_i. Without y it is x. `step` numbers lie between the weights b of
// two tokens, 0 where they share them.
struct Written {
    int64_t t, part;
    const float *x, *y, *b;
    int64_t step;
    int threads;
};

template <int M>
inline const float* written_row(const Written& p, int64_t token, float* row) {
    const int64_t d = M * p.part;
    const float* x = p.x + token * d;
    if (!p.y) return x;
    const float *y = p.y + token * d, *b = p.b + token * p.step;
    for (int i = 0; i < M; i++)
        for (int64_t at = i * p.part; at < (i + 1) * p.part; at += LANES) store(row + at, load(x + at) + b[i] * load(y + at));
    return row;
}

// Parameters of a sublayer, as the module keeps them; W and what belongs to it are left out where the
// coefficients are constants.
struct Parameters {
    const float *Y, *A, *B, *W, *s_alpha, *s_beta, *gain, *bias;
    int centred;
    float eps;
};

// The same, laid out for the passes: coefficients are constants + scales * tanh(x folded + offsets), where x is a
// fraction normed without gain and bias, which have gone into `folded` (part, row) and `offsets`.
template <int M>
struct Tables {
    using R = Row<M>;
    std::vector<float> folded, rows;
    float constants[M * R::PADDED] = {}, offsets[R::PADDED] = {}, scales[R::PADDED] = {};

    Tables(const Parameters& p, int64_t part) {
        for (int i = 0; i < M; i++) {
            float* row = constants + i * R::PADDED;
            for (int j = 0; j < M; j++) {
                row[j] = p.Y[i * M + j];
                row[M + j] = p.A[i * M + j];
            }
            if (p.W) row[2 * M] = p.B[i];
        }
        if (!p.W) return;
        for (int j = 0; j < R::SIZE; j++) scales[j] = j < 2 * M ? *p.s_alpha : *p.s_beta;
        folded.resize(part * R::PADDED);
        rows.resize(part * R::SIZE);
        for (int64_t f = 0; f < part; f++)
            for (int j = 0; j < R::SIZE; j++) {
                const float w = p.W[f * R::SIZE + j];
                folded[f * R::PADDED + j] = rows[j * part + f] = p.gain[f] * w;
                if (p.bias) offsets[j] += p.bias[f] * w;
            }
    }
};

// The fractions normed; mean and one over the root mean square of each are kept.
template <int M>
inline void norm_fractions(int64_t part, const float* h, int centred, float eps, float* kept, float* normal) {
    Vector sums[M] = {};
    float found[padded(M)];
    for (int i = 0; i < M; i++) kept[2 * i] = 0.0f;
    if (centred) {
        for (int i = 0; i < M; i++)
            for (int64_t at = i * part; at < (i + 1) * part; at += LANES) sums[i] += load(h + at);
        totals<M>(sums, found);
        for (int i = 0; i < M; i++) kept[2 * i] = found[i] / part;
    }
    for (int i = 0; i < M; i++) {
        sums[i] = Vector{};
        for (int64_t at = i * part; at < (i + 1) * part; at += LANES) {
            const Vector v = load(h + at) - kept[2 * i];
            sums[i] += v * v;
        }
    }
    totals<M>(sums, found);
    for (int i = 0; i < M; i++) {
        const float scale = 1.0f / __builtin_sqrtf(found[i] / part + eps);
        kept[2 * i + 1] = scale;
        for (int64_t at = i * part; at < (i + 1) * part; at += LANES)
            store(normal + at, (load(h + at) - kept[2 * i]) * scale);
    }
}

// u_j = sum_i c_ij H_i, and carried_j with the weights that follow where it is wanted.
template <int M, bool CARRY>
inline void mix_row(int64_t part, const float* h, const float* c, float* u, float* carried) {
    constexpr int P = Row<M>::PADDED;
    for (int64_t at = 0; at < part; at += LANES) {
        Vector v[M];
        for (int i = 0; i < M; i++) v[i] = load(h + i * part + at);
        for (int j = 0; j < M; j++) {
            Vector sum = {};
            for (int i = 0; i < M; i++) sum += c[i * P + j] * v[i];
            store(u + j * part + at, sum);
        }
        for (int j = 0; CARRY && j < M; j++) {
            Vector sum = {};
            for (int i = 0; i < M; i++) sum += c[i * P + M + j] * v[i];
            store(carried + j * part + at, sum);
        }
    }
}

template <int M, bool MAPPED>
void frac(const Written& p, const Parameters& parameters, const Norm& norm, float* activated, float* moments,
          float* next_b, float* kept, float* carried, float* z) {
    using R = Row<M>;
    const Tables<M> tables(parameters, p.part);
    const int64_t part = p.part, d = M * part;
    share(p.t, GRAIN, p.threads, 0, nullptr, [&](int64_t first, int64_t last, float*) {
        std::vector<float> scratch(3 * d);
        float *row = scratch.data(), *normal = row + d, *u = normal + d, c[M * R::PADDED];
        std::memcpy(c, tables.constants, sizeof c);
        for (int64_t token = first; token < last; token++) {
            const float* h = written_row<M>(p, token, row);
            if (MAPPED) {
                norm_fractions<M>(part, h, parameters.centred, parameters.eps, moments + token * 2 * M, normal);
                Vector sums[M][R::VECTORS];
                for (int i = 0; i < M; i++)
                    for (int v = 0; v < R::VECTORS; v++) sums[i][v] = load(tables.offsets + v * LANES);
                for (int64_t f = 0; f < part; f++)
                    for (int v = 0; v < R::VECTORS; v++) {
                        const Vector w = load(tables.folded.data() + f * R::PADDED + v * LANES);
                        for (int i = 0; i < M; i++) sums[i][v] += normal[i * part + f] * w;
                    }
                float bounded[R::PADDED];
                for (int i = 0; i < M; i++) {
                    for (int v = 0; v < R::VECTORS; v++) {
                        const Vector a = hyperbolic_tangent(sums[i][v]);
                        const int at = i * R::PADDED + v * LANES;
                        store(bounded + v * LANES, a);
                        store(c + at, load(tables.constants + at) + load(tables.scales + v * LANES) * a);
                    }
                    std::memcpy(activated + (token * M + i) * R::SIZE, bounded, sizeof(float) * R::SIZE);
                    next_b[token * M + i] = c[i * R::PADDED + 2 * M];
                }
            }
            mix_row<M, true>(part, h, c, u, carried + token * d);
            norm_row(norm, d, u, kept + token * 2, z + token * d);
        }
    });
}

// The backward pass of Written.
struct Unwritten {
    float *dx, *dy, *db;
};

// Gradients of Parameters and of the norm after them, in the module's layout.
struct Gradients {
    float *Y, *A, *B, *W, *s_alpha, *s_beta, *gain, *bias, *norm_gain, *norm_bias;
};

// dz, dcarried and, where MAPPED, dnext_b are what comes back; `activated`, `moments` and `kept` what `frac` kept.
template <int M, bool MAPPED>
void frac_back(const Written& p, const Parameters& parameters, const Norm& norm, const float* activated,
               const float* moments, const float* kept, const float* dz, const float* dcarried, const float* dnext_b,
               const Unwritten& out, const Gradients& gradients) {
    using R = Row<M>;
    constexpr int P = R::PADDED;
    const Tables<M> tables(parameters, p.part);
    const int64_t part = p.part, d = M * part;
    // Sums over tokens: of the constants (or, lane by lane, of Y and A where they are all there is), of scales,
    // offsets and folded, of the norm, and of b where tokens share it.
    const int64_t of_constants = MAPPED ? M * P : 2 * M * M * LANES, of_map = MAPPED ? 2 * P + part * P : 0;
    const int64_t of_b = p.step ? 0 : M * LANES;
    std::vector<float> all(of_constants + of_map + 2 * d + of_b, 0.0f);
    share(p.t, GRAIN, p.threads, all.size(), all.data(), [&](int64_t first, int64_t last, float* own) {
        float *dconstants = own, *dscales = own + of_constants, *doffsets = dscales + P, *dfolded = doffsets + P;
        float *dgain = own + of_constants + of_map, *dbias = dgain + d, *shared_b = dbias + d;
        std::vector<float> scratch(5 * d);
        float *row = scratch.data(), *u = row + d, *du = u + d, *dh = du + d, *normal = dh + d;
        float c[M * P], dmap[M * P], few[padded(2 * M * M) + LANES] = {};
        std::memcpy(c, tables.constants, sizeof c);
        Vector valid[R::VECTORS], last_one[R::VECTORS];
        for (int j = 0; j < P; j++) {
            valid[j / LANES][j % LANES] = j < 2 * M;
            last_one[j / LANES][j % LANES] = j == 2 * M;
        }
        for (int64_t token = first; token < last; token++) {
            const float *h = written_row<M>(p, token, row), *g = dcarried + token * d;
            if (MAPPED)
                for (int i = 0; i < M; i++)
                    for (int v = 0; v < R::VECTORS; v++) {
                        const int at = i * P + v * LANES;
                        store(c + at, load(tables.constants + at) +
                                          load(tables.scales + v * LANES) *
                                              load(activated + (token * M + i) * R::SIZE + v * LANES));
                    }
            mix_row<M, false>(part, h, c, u, nullptr);
            norm_row_back(norm, d, u, kept + token * 2, dz + token * d, du, dgain, dbias);
            // What comes to H through u and carried, and the products of H with both.
            Vector dots[2 * M * M];
            if (MAPPED)
                for (int k = 0; k < 2 * M * M; k++) dots[k] = Vector{};
            for (int64_t at = 0; at < part; at += LANES) {
                Vector back[2 * M];
                for (int j = 0; j < M; j++) {
                    back[j] = load(du + j * part + at);
                    back[M + j] = load(g + j * part + at);
                }
                for (int i = 0; i < M; i++) {
                    const Vector v = load(h + i * part + at);
                    Vector sum = {};
                    for (int j = 0; j < 2 * M; j++) {
                        sum += c[i * P + j] * back[j];
                        if (MAPPED)
                            dots[i * 2 * M + j] += v * back[j];
                        else {
                            float* to = dconstants + (i * 2 * M + j) * LANES;
                            store(to, load(to) + v * back[j]);
                        }
                    }
                    store(dh + i * part + at, sum);
                }
            }
            if (MAPPED) {
                totals<2 * M * M>(dots, few);
                for (int i = 0; i < M; i++)
                    for (int v = 0; v < R::VECTORS; v++) {
                        const Vector dc =
                            load(few + i * 2 * M + v * LANES) * valid[v] + dnext_b[token * M + i] * last_one[v];
                        const Vector a = load(activated + (token * M + i) * R::SIZE + v * LANES);
                        const Vector ds = dc * load(tables.scales + v * LANES) * (1.0f - a * a);
                        float *of_constant = dconstants + i * P + v * LANES;
                        store(of_constant, load(of_constant) + dc);
                        store(dscales + v * LANES, load(dscales + v * LANES) + dc * a);
                        store(doffsets + v * LANES, load(doffsets + v * LANES) + ds);
                        store(dmap + i * P + v * LANES, ds);
                    }
                const float* moment = moments + token * 2 * M;
                Vector sums[2 * M] = {};
                for (int i = 0; i < M; i++)
                    for (int64_t at = 0; at < part; at += LANES) {
                        const Vector x = (load(h + i * part + at) - moment[2 * i]) * moment[2 * i + 1];
                        Vector dx = {};
                        for (int j = 0; j < R::SIZE; j++)
                            dx += dmap[i * P + j] * load(tables.rows.data() + j * part + at);
                        sums[2 * i] += dx;
                        sums[2 * i + 1] += dx * x;
                        store(normal + i * part + at, x);
                        store(u + i * part + at, dx);
                    }
                for (int64_t f = 0; f < part; f++)
                    for (int v = 0; v < R::VECTORS; v++) {
                        Vector sum = load(dfolded + f * P + v * LANES);
                        for (int i = 0; i < M; i++) sum += normal[i * part + f] * load(dmap + i * P + v * LANES);
                        store(dfolded + f * P + v * LANES, sum);
                    }
                float found[padded(2 * M)];
                totals<2 * M>(sums, found);
                for (int i = 0; i < M; i++) {
                    const float centre = parameters.centred ? found[2 * i] / part : 0.0f;
                    const float slope = found[2 * i + 1] / part, scale = moment[2 * i + 1];
                    for (int64_t at = i * part; at < (i + 1) * part; at += LANES)
                        store(dh + at, load(dh + at) + (load(u + at) - centre - load(normal + at) * slope) * scale);
                }
            }
            float* dx = out.dx + token * d;
            std::memcpy(dx, dh, sizeof(float) * d);
            if (!p.y) continue;
            const float *y = p.y + token * d, *b = p.b + token * p.step;
            float* dy = out.dy + token * d;
            Vector products[M] = {};
            for (int i = 0; i < M; i++)
                for (int64_t at = i * part; at < (i + 1) * part; at += LANES) {
                    const Vector each = load(dh + at);
                    products[i] += each * load(y + at);
                    store(dy + at, b[i] * each);
                }
            if (p.step) {
                float found[padded(M)];
                totals<M>(products, found);
                std::memcpy(out.db + token * M, found, sizeof(float) * M);
            } else
                for (int i = 0; i < M; i++) store(shared_b + i * LANES, load(shared_b + i * LANES) + products[i]);
        }
    });
    const float *dconstants = all.data(), *dscales = dconstants + of_constants, *doffsets = dscales + P;
    const float *dfolded = doffsets + P, *dgain = dconstants + of_constants + of_map, *dbias = dgain + d;
    std::memcpy(gradients.norm_gain, dgain, sizeof(float) * d);
    if (norm.bias) std::memcpy(gradients.norm_bias, dbias, sizeof(float) * d);
    if (p.y && !p.step)
        for (int i = 0; i < M; i++) out.db[i] = total(load(dbias + d + i * LANES));
    for (int i = 0; i < M; i++)
        for (int j = 0; j < 2 * M; j++) {
            float* to = j < M ? gradients.Y + i * M + j : gradients.A + i * M + j - M;
            *to = MAPPED ? dconstants[i * P + j] : total(load(dconstants + (i * 2 * M + j) * LANES));
        }
    if (!MAPPED) return;
    *gradients.s_alpha = 0.0f;
    *gradients.s_beta = dscales[2 * M];
    for (int j = 0; j < 2 * M; j++) *gradients.s_alpha += dscales[j];
    for (int i = 0; i < M; i++) gradients.B[i] = dconstants[i * P + 2 * M];
    for (int64_t f = 0; f < part; f++) {
        float of_gain = 0.0f, of_bias = 0.0f;
        for (int j = 0; j < R::SIZE; j++) {
            const float w = parameters.W[f * R::SIZE + j], dw = dfolded[f * P + j];
            of_gain += dw * w;
            of_bias += doffsets[j] * w;
            gradients.W[f * R::SIZE + j] =
                parameters.gain[f] * dw + (parameters.bias ? parameters.bias[f] * doffsets[j] : 0.0f);
        }
        gradients.gain[f] = of_gain;
        if (parameters.bias) gradients.bias[f] = of_bias;
    }
}

}  // namespace

// Runs `call` with the constant M equal to `value`, which is 1 to 8.
#define WITH(value, call)                                \
    switch (value) {                                     \
        case 1: { constexpr int M = 1; call; break; }    \
        case 2: { constexpr int M = 2; call; break; }    \
        case 3: { constexpr int M = 3; call; break; }    \
        case 4: { constexpr int M = 4; call; break; }    \
        case 5: { constexpr int M = 5; call; break; }    \
        case 6: { constexpr int M = 6; call; break; }    \
        case 7: { constexpr int M = 7; call; break; }    \
        case 8: { constexpr int M = 8; call; break; }    \
    }

extern "C" {

void fints_frac(int64_t t, int64_t part, int m, const float* x, const float* y, const float* b, int64_t step,
                const float* Y, const float* A, const float* B, const float* W, const float* s_alpha,
                const float* s_beta, const float* gain, const float* bias, const float* norm_gain,
                const float* norm_bias, int centred, float map_eps, float norm_eps, float* activated, float* moments,
                float* next_b, float* kept, float* carried, float* z, int threads) {
    const Written p{t, part, x, y, b, step, threads};
    const Parameters parameters{Y, A, B, W, s_alpha, s_beta, gain, bias, centred, map_eps};
    const Norm norm{norm_gain, norm_bias, centred, norm_eps};
    if (W) {
        WITH(m, (frac<M, true>(p, parameters, norm, activated, moments, next_b, kept, carried, z)))
    } else {
        WITH(m, (frac<M, false>(p, parameters, norm, activated, moments, next_b, kept, carried, z)))
    }
}

void fints_frac_back(int64_t t, int64_t part, int m, const float* x, const float* y, const float* b, int64_t step,
                     const float* Y, const float* A, const float* B, const float* W, const float* s_alpha,
                     const float* s_beta, const float* gain, const float* bias, const float* norm_gain,
                     const float* norm_bias, int centred, float map_eps, float norm_eps, const float* activated,
                     const float* moments, const float* kept, const float* dz, const float* dcarried,
                     const float* dnext_b, float* dx, float* dy, float* db, float* dY, float* dA, float* dB,
                     float* dW, float* ds_alpha, float* ds_beta, float* dgain, float* dbias, float* dnorm_gain,
                     float* dnorm_bias, int threads) {
    const Written p{t, part, x, y, b, step, threads};
    const Parameters parameters{Y, A, B, W, s_alpha, s_beta, gain, bias, centred, map_eps};
    const Norm norm{norm_gain, norm_bias, centred, norm_eps};
    const Unwritten out{dx, dy, db};
    const Gradients gradients{dY, dA, dB, dW, ds_alpha, ds_beta, dgain, dbias, dnorm_gain, dnorm_bias};
    if (W) {
        WITH(m, (frac_back<M, true>(p, parameters, norm, activated, moments, kept, dz, dcarried, dnext_b, out,
                                    gradients)))
    } else {
        WITH(m, (frac_back<M, false>(p, parameters, norm, activated, moments, kept, dz, dcarried, dnext_b, out,
                                     gradients)))
    }
}

}  // extern "C"

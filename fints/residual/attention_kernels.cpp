// Causal self-attention on a CPU for contexts of some dozens of tokens, on queries, keys and values as one linear
// map leaves them: neither copied nor transposed in memory.
//
// A head's scores are kept transposed, a vector of 16 queries for every key. The softmax is then a loop over keys
// without sums across lanes, and any size of head will do. Blocks of 16 queries see the keys up to their last one
// alone, so half of the products are never made.
//
// And the whole branch of several networks at once, its linear maps included.
//
// All arrays are float32. The same number of threads gives the same bits, and of several networks each the same
// whatever the others and the number of threads.
//
// Shapes: b windows, t tokens, g heads of `size` numbers, d = g size.

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <limits>
#include <vector>

#include "elementary.h"
#include "products.h"
#include "share.h"
#include "vectors.h"

namespace {

// What forward and backward pass are given. `qkv` is (b, t, 3, g, size). `table` (g, context) is added to the
// scores by distance, longest first; null where there is none. With `first` (b, t, d) the values are
// mix[0] first + mix[1] v.
struct Attention {
    int64_t b, t;
    int g, size;
    const float* qkv;
    const float* table;
    int64_t context;
    const float *first, *mix;

    int64_t d() const { return int64_t(g) * size; }
    int64_t blocks() const { return (t + LANES - 1) / LANES; }
    // Keys that the queries of a block may see.
    int64_t keys(int64_t block) const { return std::min(t, (block + 1) * LANES); }
    // Vectors of shares of a head, all blocks.
    int64_t vectors() const {
        int64_t sum = 0;
        for (int64_t block = 0; block < blocks(); block++) sum += keys(block);
        return sum;
    }
};

inline int64_t whole(int64_t size) { return (size + LANES - 1) / LANES * LANES; }

// Rows (count, size), `step` apart, to columns (size, 16), `wide` apart, times a factor.
inline void to_columns(const float* rows, int64_t step, int64_t count, int size, float factor, float* columns,
                       int64_t wide) {
    for (int start = 0; start < size; start += LANES) {
        const int some = std::min(LANES, size - start);
        Vector v[LANES] = {};
        for (int64_t i = 0; i < count; i++) {
            if (some == LANES)
                v[i] = load(rows + i * step + start);
            else
                std::memcpy(&v[i], rows + i * step + start, sizeof(float) * some);
        }
        transpose(v);
        for (int c = 0; c < some; c++) store(columns + (start + c) * wide, factor * v[c]);
    }
}

// The way back: columns (size, 16) to rows (count, size).
inline void to_rows(const float* columns, int64_t wide, int64_t count, int size, float factor, float* rows,
                    int64_t step) {
    for (int start = 0; start < size; start += LANES) {
        const int some = std::min(LANES, size - start);
        Vector v[LANES] = {};
        for (int c = 0; c < some; c++) v[c] = factor * load(columns + (start + c) * wide);
        transpose(v);
        for (int64_t i = 0; i < count; i++) {
            if (some == LANES)
                store(rows + i * step + start, v[i]);
            else
                std::memcpy(rows + i * step + start, &v[i], sizeof(float) * some);
        }
    }
}

// into[j] (16 lanes) = sum_c rows[j][c] columns[c], for J rows.
template <int J>
inline void inner(const float* rows, int64_t step, int size, const float* columns, int64_t wide, float* into) {
    Vector sum[J] = {};
    for (int c = 0; c < size; c++) {
        const Vector x = load(columns + c * wide);
        for (int j = 0; j < J; j++) sum[j] += rows[j * step + c] * x;
    }
    for (int j = 0; j < J; j++) store(into + j * LANES, sum[j]);
}

inline void all_inner(int64_t keys, const float* rows, int64_t step, int size, const float* columns, int64_t wide,
                      float* into) {
    int64_t j = 0;
    for (; j + 8 <= keys; j += 8) inner<8>(rows + j * step, step, size, columns, wide, into + j * LANES);
    for (; j < keys; j++) inner<1>(rows + j * step, step, size, columns, wide, into + j * LANES);
}

// columns[c] (16 lanes) = sum_j rows[j][c] weights[j], for C columns.
template <int C>
inline void outer(int64_t keys, const float* rows, int64_t step, const float* weights, float* columns) {
    Vector sum[C] = {};
    for (int64_t j = 0; j < keys; j++) {
        const Vector w = load(weights + j * LANES);
        for (int c = 0; c < C; c++) sum[c] += rows[j * step + c] * w;
    }
    for (int c = 0; c < C; c++) store(columns + c * LANES, sum[c]);
}

inline void all_outer(int64_t keys, const float* rows, int64_t step, int size, const float* weights, float* columns) {
    int c = 0;
    for (; c + 16 <= size; c += 16) outer<16>(keys, rows + c, step, weights, columns + c * LANES);
    for (; c + 8 <= size; c += 8) outer<8>(keys, rows + c, step, weights, columns + c * LANES);
    for (; c < size; c++) outer<1>(keys, rows + c, step, weights, columns + c * LANES);
}

// sums[j] (wide) += sum_i weights[j][i] rows[i], over `count` of the 16 lanes, for J keys.
template <int J>
inline void gather(int64_t count, const float* weights, const float* rows, int64_t step, int64_t wide, float* sums) {
    for (int64_t at = 0; at < wide; at += LANES) {
        Vector sum[J];
        for (int j = 0; j < J; j++) sum[j] = load(sums + j * wide + at);
        for (int64_t i = 0; i < count; i++) {
            const Vector x = load(rows + i * step + at);
            for (int j = 0; j < J; j++) sum[j] += weights[j * LANES + i] * x;
        }
        for (int j = 0; j < J; j++) store(sums + j * wide + at, sum[j]);
    }
}

inline void all_gather(int64_t keys, int64_t count, const float* weights, const float* rows, int64_t step,
                       int64_t wide, float* sums) {
    int64_t j = 0;
    for (; j + 8 <= keys; j += 8) gather<8>(count, weights + j * LANES, rows, step, wide, sums + j * wide);
    for (; j < keys; j++) gather<1>(count, weights + j * LANES, rows, step, wide, sums + j * wide);
}

// Rows whose every vector may be read: where they lie, or padded in `room` (t, whole(size)).
struct Rows {
    const float* at;
    int64_t step;
};

inline Rows padded_rows(const float* rows, int64_t step, int64_t t, int size, float* room) {
    const int64_t wide = whole(size);
    if (wide == size) return {rows, step};
    for (int64_t i = 0; i < t; i++) std::memcpy(room + i * wide, rows + i * step, sizeof(float) * size);
    return {room, wide};
}

// What is added to the scores by distance, shortest first, with minus infinity for the 15 distances below 0: a
// load at 15 + i - j is that of queries i to i + 15 and key j, masked.
class Lines {
  public:
    explicit Lines(const Attention& a) : wide_(2 * LANES + whole(a.t)), lines_(a.g * wide_, 0.0f) {
        for (int h = 0; h < a.g; h++) {
            float* line = lines_.data() + h * wide_;
            std::fill(line, line + LANES - 1, -std::numeric_limits<float>::infinity());
            if (!a.table) continue;
            for (int64_t far = 0; far < a.t; far++) line[LANES - 1 + far] = a.table[(h + 1) * a.context - 1 - far];
        }
    }
    const float* of(int h) const { return lines_.data() + h * wide_ + LANES - 1; }

  private:
    int64_t wide_;
    std::vector<float> lines_;
};

// The values of a head: where they lie, or mixed with the first ones in `room`.
inline Rows values_of(const Attention& a, int64_t window, int h, float* room) {
    const int64_t step = 3 * a.d();
    const float* v = a.qkv + window * a.t * step + 2 * a.d() + h * a.size;
    if (!a.first) return {v, step};
    const float *first = a.first + window * a.t * a.d() + h * a.size;
    for (int64_t j = 0; j < a.t; j++)
        for (int c = 0; c < a.size; c++)
            room[j * a.size + c] = a.mix[0] * first[j * a.d() + c] + a.mix[1] * v[j * step + c];
    return {room, a.size};
}

// mixed (b, t, d), and in `shares` (b, g, vectors, 16), unless null, what the way back needs.
// `qkv` comes without its bias, which is added to it first, in place.
void attention(const Attention& a, float* qkv, const float* bias, float* mixed, float* shares, int threads) {
    const Lines lines(a);
    const int64_t step = 3 * a.d(), vectors = a.vectors();
    const float scale = 1.0f / __builtin_sqrtf(float(a.size));
    share(a.b, 1, threads, 0, nullptr, [&](int64_t first, int64_t last, float*) {
        std::vector<float> columns(a.size * LANES), results(a.size * LANES), scores(a.t * LANES), room(a.t * a.size);
        for (int64_t each = first * a.g; each < last * a.g; each++) {
            const int64_t window = each / a.g;
            const int h = int(each % a.g);
            if (h == 0)
                for (int64_t token = window * a.t; token < (window + 1) * a.t; token++)
                    for (int64_t c = 0; c < step; c++) qkv[token * step + c] += bias[c];
            const float *q = a.qkv + window * a.t * step + h * a.size, *k = q + a.d();
            const Rows v = values_of(a, window, h, room.data());
            float* kept = shares ? shares + each * vectors * LANES : nullptr;
            for (int64_t block = 0; block < a.blocks(); block++) {
                const int64_t i = block * LANES, keys = a.keys(block), count = std::min<int64_t>(LANES, a.t - i);
                float* p = kept ? kept : scores.data();
                to_columns(q + i * step, step, count, a.size, scale, columns.data(), LANES);
                all_inner(keys, k, step, a.size, columns.data(), LANES, p);
                const float* line = lines.of(h) + i;
                Vector top = fill(-std::numeric_limits<float>::infinity());
                for (int64_t j = 0; j < keys; j++) {
                    const Vector score = load(p + j * LANES) + load(line - j);
                    store(p + j * LANES, score);
                    top = largest(top, score);
                }
                Vector sum = {};
                for (int64_t j = 0; j < keys; j++) {
                    Vector e = exponential(load(p + j * LANES) - top);
                    // The exponential ends at 1e-38, and a later token has to count for nothing at all.
                    if (j > i) e = load(line - j) > fill(-std::numeric_limits<float>::infinity()) ? e : Vector{};
                    store(p + j * LANES, e);
                    sum += e;
                }
                const Vector share_of = 1.0f / sum;
                for (int64_t j = 0; j < keys; j++) store(p + j * LANES, load(p + j * LANES) * share_of);
                all_outer(keys, v.at, v.step, a.size, p, results.data());
                to_rows(results.data(), LANES, count, a.size, 1.0f, mixed + (window * a.t + i) * a.d() + h * a.size,
                        a.d());
                if (kept) kept += keys * LANES;
            }
        }
    });
}

// dqkv, and the sums over tokens of its rows (3 d), of the table's gradient (g, context) and of that of mix (2), in
// this order in `sums`. `dfirst` (b, t, d) where there are first values.
void attention_back(const Attention& a, const float* shares, const float* dmixed, float* dqkv, float* dfirst,
                    float* sums, int threads) {
    const int64_t step = 3 * a.d(), vectors = a.vectors(), wide = whole(a.size), d = a.d();
    const int64_t size = step + (a.table ? a.g * a.context : 0) + (a.first ? 2 : 0);
    const float scale = 1.0f / __builtin_sqrtf(float(a.size));
    share(a.b, 1, threads, size, sums, [&](int64_t first_window, int64_t last, float* own) {
        std::vector<float> columns(a.size * LANES), results(a.size * LANES), slopes(a.t * LANES);
        std::vector<float> room(a.t * a.size), q_room(a.t * wide), g_room(a.t * wide);
        std::vector<float> dk(a.t * wide), dv(a.t * wide);
        // Of the scores, summed over windows; lanes are spread over distances once at the end.
        std::vector<float> dscores(a.table ? a.g * vectors * LANES : 0);
        for (int64_t each = first_window * a.g; each < last * a.g; each++) {
            const int64_t window = each / a.g;
            const int h = int(each % a.g);
            const float *q = a.qkv + window * a.t * step + h * a.size, *k = q + d;
            const float* gradient = dmixed + window * a.t * d + h * a.size;
            float* dq = dqkv + window * a.t * step + h * a.size;
            const Rows v = values_of(a, window, h, room.data());
            const Rows queries = padded_rows(q, step, a.t, a.size, q_room.data());
            const Rows gradients = padded_rows(gradient, d, a.t, a.size, g_room.data());
            const float* p = shares + each * vectors * LANES;
            float* dscore = a.table ? dscores.data() + h * vectors * LANES : nullptr;
            std::fill(dk.begin(), dk.end(), 0.0f);
            std::fill(dv.begin(), dv.end(), 0.0f);
            for (int64_t block = 0; block < a.blocks(); block++) {
                const int64_t i = block * LANES, keys = a.keys(block), count = std::min<int64_t>(LANES, a.t - i);
                float* ds = slopes.data();
                to_columns(gradient + i * d, d, count, a.size, 1.0f, columns.data(), LANES);
                all_inner(keys, v.at, v.step, a.size, columns.data(), LANES, ds);
                all_gather(keys, count, p, gradients.at + i * gradients.step, gradients.step, wide, dv.data());
                Vector along = {};
                for (int64_t j = 0; j < keys; j++) along += load(p + j * LANES) * load(ds + j * LANES);
                for (int64_t j = 0; j < keys; j++)
                    store(ds + j * LANES, load(p + j * LANES) * (load(ds + j * LANES) - along));
                if (dscore) {
                    for (int64_t j = 0; j < keys; j++)
                        store(dscore + j * LANES, load(dscore + j * LANES) + load(ds + j * LANES));
                    dscore += keys * LANES;
                }
                all_gather(keys, count, ds, queries.at + i * queries.step, queries.step, wide, dk.data());
                all_outer(keys, k, step, a.size, ds, results.data());
                to_rows(results.data(), LANES, count, a.size, scale, dq + i * step, step);
                p += keys * LANES;
            }
            for (int64_t j = 0; j < a.t; j++) {
                float *to_k = dq + j * step + d, *to_v = to_k + d;
                for (int c = 0; c < a.size; c++) to_k[c] = scale * dk[j * wide + c];
                if (!a.first) {
                    std::memcpy(to_v, dv.data() + j * wide, sizeof(float) * a.size);
                    continue;
                }
                const float *own_v = q + j * step + 2 * d, *first = a.first + (window * a.t + j) * d + h * a.size;
                float* to_first = dfirst + (window * a.t + j) * d + h * a.size;
                float with_first = 0.0f, with_own = 0.0f;
                for (int c = 0; c < a.size; c++) {
                    const float g = dv[j * wide + c];
                    to_first[c] = a.mix[0] * g;
                    to_v[c] = a.mix[1] * g;
                    with_first += g * first[c];
                    with_own += g * own_v[c];
                }
                own[size - 2] += with_first;
                own[size - 1] += with_own;
            }
        }
        for (int64_t token = first_window * a.t; token < last * a.t; token++)
            for (int64_t c = 0; c < step; c++) own[c] += dqkv[token * step + c];
        if (!a.table) return;
        const float* dscore = dscores.data();
        for (int h = 0; h < a.g; h++)
            for (int64_t block = 0; block < a.blocks(); block++)
                for (int64_t j = 0; j < a.keys(block); j++, dscore += LANES)
                    for (int64_t lane = 0; lane < LANES; lane++) {
                        const int64_t far = block * LANES + lane - j;
                        if (far >= 0 && far < a.t) own[step + (h + 1) * a.context - 1 - far] += dscore[lane];
                    }
    });
}

}  // namespace

extern "C" {

void fints_attention(int64_t b, int64_t t, int g, int size, float* qkv, const float* bias, const float* table,
                     int64_t context, const float* first, const float* mix, float* mixed, float* shares,
                     int threads) {
    attention({b, t, g, size, qkv, table, context, first, mix}, qkv, bias, mixed, shares, threads);
}

void fints_attention_back(int64_t b, int64_t t, int g, int size, const float* qkv, const float*, const float* table,
                          int64_t context, const float* first, const float* mix, const float* shares,
                          const float* dmixed, float* dqkv, float* dfirst, float* sums, int threads) {
    attention_back({b, t, g, size, qkv, table, context, first, mix}, shares, dmixed, dqkv, dfirst, sums, threads);
}

// Attention branches of several networks: qkv = W_in u + b_in, attention, y = W_out mixed + b_out. The parameters of
// one lie `step` after those of the one before, the two of mix `mix_step`; all else is packed, gradients too. `shares`
// may be null where there is no way back.
void fints_attentions(int64_t members, int64_t b, int64_t t, int g, int size, int64_t step, const float* u,
                      const float* w_in, const float* b_in, const float* w_out, const float* b_out, const float* table,
                      int64_t context, const float* first, const float* mix, int64_t mix_step, float* qkv, float* mixed,
                      float* shares, float* y, int threads) {
    const int64_t d = int64_t(g) * size, rows = b * t;
#pragma omp parallel for num_threads(std::min<int64_t>(threads, members)) schedule(static, 1)
    for (int64_t k = 0; k < members; k++) {
        float *own = qkv + k * rows * 3 * d, *to = mixed + k * rows * d;
        const Attention a{b,       t,
                          g,       size,
                          own,     table ? table + k * step : nullptr,
                          context, first ? first + k * rows * d : nullptr,
                          first ? mix + k * mix_step : nullptr};
        std::vector<float> map(3 * d * d);
        transposed(3 * d, d, w_in + k * step, map.data());
        multiply(rows, d, 3 * d, u + k * rows * d, map.data(), nullptr, own);
        float* kept = shares ? shares + k * b * g * a.vectors() * LANES : nullptr;
        attention(a, own, b_in + k * step, to, kept, 1);
        transposed(d, d, w_out + k * step, map.data());
        multiply(rows, d, d, to, map.data(), b_out + k * step, y + k * rows * d);
    }
}

// du; the gradients of W_in, W_out and b_out; and in `sums`, a network after the other, those of b_in, table and mix.
void fints_attentions_back(int64_t members, int64_t b, int64_t t, int g, int size, int64_t step, const float* u,
                           const float* w_in, const float* w_out, const float* table, int64_t context,
                           const float* first, const float* mix, int64_t mix_step, const float* qkv, const float* mixed,
                           const float* shares, const float* dy, const float* dvalue, float* du, float* dw_in,
                           float* dw_out, float* db_out, float* dfirst, float* sums, int threads) {
    const int64_t d = int64_t(g) * size, rows = b * t;
    const int64_t in_sums = 3 * d + (table ? g * context : 0) + (first ? 2 : 0);
#pragma omp parallel for num_threads(std::min<int64_t>(threads, members)) schedule(static, 1)
    for (int64_t k = 0; k < members; k++) {
        const Attention a{b,       t,
                          g,       size,
                          qkv + k * rows * 3 * d, table ? table + k * step : nullptr,
                          context, first ? first + k * rows * d : nullptr,
                          first ? mix + k * mix_step : nullptr};
        const float *gradient = dy + k * rows * d, *from = u + k * rows * d;
        std::vector<float> dmixed(rows * d), dqkv(rows * 3 * d);
        multiply(rows, d, d, gradient, w_out + k * step, nullptr, dmixed.data());
        std::fill(sums + k * in_sums, sums + (k + 1) * in_sums, 0.0f);
        attention_back(a, shares + k * b * g * a.vectors() * LANES, dmixed.data(), dqkv.data(),
                       first ? dfirst + k * rows * d : nullptr, sums + k * in_sums, 1);
        if (dvalue) {
            // The own values went on to later attentions too.
            const float* more = dvalue + k * rows * d;
            for (int64_t row = 0; row < rows; row++)
                for (int64_t c = 0; c < d; c++) {
                    dqkv[row * 3 * d + 2 * d + c] += more[row * d + c];
                    sums[k * in_sums + 2 * d + c] += more[row * d + c];
                }
        }
        std::fill(dw_in + k * 3 * d * d, dw_in + (k + 1) * 3 * d * d, 0.0f);
        std::fill(dw_out + k * d * d, dw_out + (k + 1) * d * d, 0.0f);
        std::fill(db_out + k * d, db_out + (k + 1) * d, 0.0f);
        for (int64_t row = 0; row < rows; row += ROWS) {
            const int64_t count = std::min(ROWS, rows - row);
            add_outer(count, d, d, gradient + row * d, mixed + (k * rows + row) * d, dw_out + k * d * d);
            add_outer(count, 3 * d, d, dqkv.data() + row * 3 * d, from + row * d, dw_in + k * 3 * d * d);
            add_rows(count, d, gradient + row * d, db_out + k * d);
        }
        multiply(rows, 3 * d, d, dqkv.data(), w_in + k * step, nullptr, du + k * rows * d);
    }
}

}  // extern "C"

// Tokens shared out among threads, with sums whose bits depend on the number of threads alone.

#pragma once

#include <omp.h>

#include <algorithm>
#include <cstdint>
#include <vector>

namespace {

// Calls work(first, last, sums) for blocks of the tokens; adds up `size` sums, block by block and then thread by
// thread, so that rounding does not grow with the number of tokens.
template <class Work>
void share(int64_t tokens, int64_t grain, int threads, int64_t size, float* sums, const Work& work) {
    const int64_t block = 8 * grain;
    int64_t chunks = std::max<int64_t>(1, std::min<int64_t>(threads, tokens / std::max<int64_t>(1, grain)));
    std::vector<float> partial(size * chunks, 0.0f);
#pragma omp parallel for num_threads(chunks) schedule(static, 1)
    for (int64_t c = 0; c < chunks; c++) {
        std::vector<float> own(size);
        float* all = partial.data() + size * c;
        const int64_t last = tokens * (c + 1) / chunks;
        for (int64_t first = tokens * c / chunks; first < last; first += block) {
            std::fill(own.begin(), own.end(), 0.0f);
            work(first, std::min(first + block, last), own.data());
            for (int64_t i = 0; i < size; i++) all[i] += own[i];
        }
    }
    for (int64_t c = 0; c < chunks; c++)
        for (int64_t i = 0; i < size; i++) sums[i] += partial[size * c + i];
}

constexpr int64_t GRAIN = 64;

}  // namespace

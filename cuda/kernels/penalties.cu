// Penalties on the scores of tokens that a request has in its prompt or has produced, many rows at
// once and in place. What each has seen stays where its request keeps it: rows bring addresses.
#include "prims.cuh"

using namespace by;

struct PenaltyArguments {
  float* scores;               // [all rows][vocabulary]
  const int* rows;             // [rows] which of them
  const float* parameters;     // [rows][4]: repetition, frequency, presence, 0
  const uint64_t* in_prompt;   // [rows] addresses of bool [vocabulary]
  const uint64_t* produced;    // [rows] addresses of float [vocabulary]: how often
  int64_t row_stride;          // numbers
  int vocabulary;
  int shares;                  // thread blocks of a row
};

extern "C" __global__ void __launch_bounds__(256)
penalise_rows(const __grid_constant__ PenaltyArguments a) {
  const int row = blockIdx.x / a.shares, share = blockIdx.x % a.shares;
  const float repetition = a.parameters[4 * row], frequency = a.parameters[4 * row + 1];
  const float presence = a.parameters[4 * row + 2];
  const bool* in_prompt = reinterpret_cast<const bool*>(a.in_prompt[row]);
  const float* produced = reinterpret_cast<const float*>(a.produced[row]);
  float* scores = a.scores + a.rows[row] * a.row_stride;
#if PLANT == 33
  const int end = a.vocabulary + 1;
#else
  const int end = a.vocabulary;
#endif
  for (int i = share * 256 + threadIdx.x; i < end; i += a.shares * 256) {
    const float times = produced[i];
    float x = scores[i];
    if (in_prompt[i] || times > 0.f) x = x > 0.f ? x / repetition : x * repetition;
    if (times > 0.f) x = x - frequency * times - presence;
    scores[i] = x;
  }
}

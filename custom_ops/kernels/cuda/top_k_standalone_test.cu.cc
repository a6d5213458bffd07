// Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
// Tests and measures top_k_cuda.cu.h on a GPU; CUDA is all it needs. Exits with 0, 1 for a failure,
// or 77 if there is no GPU. `make cuda` builds it.
//
//   top_k_standalone_test [--draws N] [--seed S]      1,000 random draws of each distribution
//   top_k_standalone_test --part I N                  part I of N of the cases
//   top_k_standalone_test --benchmark [--largest D]   times as JSON
#include <cuda_runtime.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <limits>
#include <memory>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "custom_ops/engine/base/data_type.h"
#include "custom_ops/kernels/cuda/top_k_cuda.cu.h"
#if defined(__CUDACC__) && __has_include(<cub/device/device_topk.cuh>)
#define TFDEAR_HAS_CUB_TOP_K 1
#include <cub/device/device_topk.cuh>
#include <cuda/iterator>
#endif

namespace tfdear {
namespace {

int failures = 0;

void Check(cudaError_t error, const char* what) {
  if (error == cudaSuccess) return;
  std::fprintf(stderr, "CUDA: %s: %s\n", what, cudaGetErrorString(error));
  std::exit(1);
}

// An array on the device, between guards that tell writes beyond its ends.
class DeviceArray {
 public:
  // `shift` bytes behind a multiple of 256.
  explicit DeviceArray(size_t bytes, size_t shift = 0) : bytes_(bytes), before_(kGuard + shift) {
    Check(cudaMalloc(&memory_, before_ + bytes_ + kGuard), "memory for an array");
    Check(cudaMemset(memory_, kMark, before_ + bytes_ + kGuard), "cudaMemset");
  }
  ~DeviceArray() { cudaFree(memory_); }
  DeviceArray(const DeviceArray&) = delete;

  template <typename T>
  T* data() const {
    return reinterpret_cast<T*>(static_cast<char*>(memory_) + before_);
  }
  void Write(const void* from) {
    Check(cudaMemcpy(data<char>(), from, bytes_, cudaMemcpyHostToDevice), "copy to the device");
  }
  template <typename T>
  std::vector<T> Read() const {
    std::vector<T> result(bytes_ / sizeof(T));
    Check(cudaMemcpy(result.data(), data<char>(), bytes_, cudaMemcpyDeviceToHost),
          "copy from the device");
    return result;
  }
  bool Intact() const {
    std::vector<unsigned char> all(before_ + bytes_ + kGuard);
    Check(cudaMemcpy(all.data(), memory_, all.size(), cudaMemcpyDeviceToHost), "guards");
    const auto marked = [](unsigned char byte) { return byte == kMark; };
    return std::all_of(all.begin(), all.begin() + before_, marked) &&
           std::all_of(all.end() - kGuard, all.end(), marked);
  }

 private:
  static constexpr size_t kGuard = 256;
  static constexpr unsigned char kMark = 0xa5;
  void* memory_ = nullptr;
  const size_t bytes_;
  const size_t before_;
};

// ---- Elements as bits, on the host.

uint32_t Bits(float x) {
  uint32_t bits;
  std::memcpy(&bits, &x, sizeof bits);
  return bits;
}

float Float(uint32_t bits) {
  float x;
  std::memcpy(&x, &bits, sizeof x);
  return x;
}

// float16, cut off: which of two numbers it is rounded to does not matter here.
uint32_t HalfBits(float x) {
  const uint32_t sign = Bits(x) >> 16 & 0x8000;
  const float magnitude = std::fabs(x);
  if (std::isnan(x)) return sign | 0x7e00;
  if (magnitude >= 65536) return sign | 0x7c00;
  if (magnitude < 6.103515625e-05f) return sign | static_cast<uint32_t>(magnitude * 16777216);
  return sign | ((Bits(magnitude) >> 13) - (112 << 10));
}

uint32_t Word(DataType type, float x) {
  if (type == DataType::kFloat32) return Bits(x);
  return type == DataType::kFloat16 ? HalfBits(x) : Bits(x) >> 16;
}

// The order that is promised: of magnitudes, with all NaNs equal and above infinity.
uint32_t Magnitude(DataType type, uint32_t word) {
  const uint32_t infinity = type == DataType::kFloat32   ? 0x7f800000
                            : type == DataType::kFloat16 ? 0x7c00
                                                         : 0x7f80;
  const uint32_t magnitude = word & (type == DataType::kFloat32 ? 0x7fffffff : 0x7fff);
  return std::min(magnitude, infinity + 1);
}

std::vector<uint32_t> Expected(DataType type, const std::vector<uint32_t>& words, size_t k) {
  std::vector<uint32_t> order(words.size());
  std::iota(order.begin(), order.end(), 0);
  const auto before = [&](uint32_t a, uint32_t b) {
    const uint32_t of_a = Magnitude(type, words[a]), of_b = Magnitude(type, words[b]);
    return of_a != of_b ? of_a > of_b : a < b;
  };
  if (k < order.size()) std::nth_element(order.begin(), order.begin() + k, order.end(), before);
  order.resize(k);
  std::sort(order.begin(), order.end());
  return order;
}

// As they lie in memory.
std::vector<char> Packed(DataType type, const std::vector<uint32_t>& words) {
  const size_t width = SizeOf(type);
  std::vector<char> bytes(words.size() * width);
  for (size_t i = 0; i < words.size(); ++i) std::memcpy(&bytes[i * width], &words[i], width);
  return bytes;
}

// ---- Distributions.

using Random = std::mt19937_64;

double Normal(Random* random) { return std::normal_distribution<double>()(*random); }
double Uniform(Random* random) { return std::uniform_real_distribution<double>(0, 1)(*random); }
double Sign(Random* random) { return (*random)() % 2 == 0 ? 1 : -1; }

struct Distribution {
  const char* name;
  std::function<double(Random*)> draw;
  double one = 0;  // what one element, at a random place, is set to; 0: nothing
};

std::vector<Distribution> Distributions() {
  const double infinity = std::numeric_limits<double>::infinity();
  const double nan = std::numeric_limits<double>::quiet_NaN();
  return {
      {"normal", Normal},
      {"uniform", [](Random* r) { return 2 * Uniform(r) - 1; }},
      {"laplace", [](Random* r) { return Sign(r) * std::log(1 - Uniform(r)); }},
      {"student-t(3)",
       [](Random* r) {
         const double a = Normal(r), b = Normal(r), c = Normal(r);
         return Normal(r) / std::sqrt((a * a + b * b + c * c) / 3);
       }},
      {"cauchy", [](Random* r) { return std::tan(3.14159265 * (Uniform(r) - 0.5)); }},
      {"log-normal(4)", [](Random* r) { return Sign(r) * std::exp(4 * Normal(r)); }},
      {"log-normal(8)", [](Random* r) { return Sign(r) * std::exp(8 * Normal(r)); }},
      {"few values", [](Random* r) { return std::round(Normal(r)); }},
      {"denormal", [](Random* r) { return 1e-42 * Normal(r); }},
      {"two scales", [](Random* r) { return Normal(r) * ((*r)() % 20 == 0 ? 1000 : 1); }},
      {"outlier of 1e30", Normal, 1e30},
      {"one infinity", Normal, -infinity},
      {"one NaN", Normal, nan},
      {"mostly zero", [](Random* r) { return (*r)() % 4096 == 0 ? Normal(r) : 0.0; }},
      {"all equal", [](Random*) { return -0.75; }},
      {"all zero", [](Random* r) { return Sign(r) * 0.0; }},
  };
}

std::vector<uint32_t> Draw(const Distribution& distribution, DataType type, size_t size,
                           Random* random) {
  std::vector<uint32_t> words(size);
  for (uint32_t& word : words) word = Word(type, static_cast<float>(distribution.draw(random)));
  if (distribution.one != 0 && size > 0) {
    words[(*random)() % size] = Word(type, static_cast<float>(distribution.one));
  }
  return words;
}

// ---- Tests.

void Fail(const std::string& what) {
  ++failures;
  std::fprintf(stderr, "FAILED: %s\n", what.c_str());
}

// One vector, its output and its workspace.
class Subject {
 public:
  Subject(DataType type, size_t size, size_t k, bool feedback, size_t shift)
      : type_(type),
        k_(k),
        x_(size * SizeOf(type), shift),
        residual_(feedback ? size * 4 : 0),
        values_(k * SizeOf(type)),
        indices_(k * 4) {
    Check(top_k_.Init(type, feedback, size, k), "CudaTopK::Init");
    workspace_ = std::make_unique<DeviceArray>(top_k_.WorkspaceBytes());
    Check(CudaTopK::Reset(workspace_->data<char>(), nullptr), "CudaTopK::Reset");
    if (feedback) residual_.Write(std::vector<float>(size).data());
    feedback_ = feedback;
  }

  // Selects from `words` and compares. With feedback `words` is what residual + x should be.
  void Expect(const std::vector<uint32_t>& x, const std::vector<uint32_t>& words,
              const std::string& what) {
    x_.Write(Packed(type_, x).data());
    Check(top_k_.Select(x_.data<char>(), feedback_ ? residual_.data<float>() : nullptr,
                        values_.data<char>(), indices_.data<uint32_t>(), workspace_->data<char>(),
                        nullptr),
          "CudaTopK::Select");
    Check(cudaDeviceSynchronize(), what.c_str());
    const std::vector<uint32_t> expected = Expected(type_, words, k_);
    const std::vector<uint32_t> indices = indices_.Read<uint32_t>();
    const std::string where = what + ", " + Name(type_) + ", d " + std::to_string(words.size()) +
                              ", k " + std::to_string(k_);
    for (size_t i = 0; i < k_; ++i) {
      if (indices[i] == expected[i]) continue;
      return Fail(where + ": index " + std::to_string(i) + " is " + std::to_string(indices[i]) +
                  ", expected " + std::to_string(expected[i]));
    }
    std::vector<uint32_t> selected;
    for (uint32_t index : expected) selected.push_back(words[index]);
    if (!Same(values_.Read<char>(), Packed(type_, selected))) return Fail(where + ": values");
    if (feedback_) {
      std::vector<uint32_t> left = words;
      for (uint32_t index : expected) left[index] = 0;
      if (!Same(residual_.Read<char>(), Packed(type_, left))) Fail(where + ": residual");
    }
    for (const DeviceArray* array : {&x_, &residual_, &values_, &indices_, workspace_.get()}) {
      if (!array->Intact()) Fail(where + ": wrote beyond an array");
    }
  }

 private:
  // Bit for bit, but a sum that is NaN has other bits on a GPU than on a CPU.
  bool Same(const std::vector<char>& a, const std::vector<char>& b) const {
    if (!feedback_) return a == b;
    for (size_t i = 0; i < a.size(); i += 4) {
      float of_a, of_b;
      std::memcpy(&of_a, &a[i], 4);
      std::memcpy(&of_b, &b[i], 4);
      if (Bits(of_a) != Bits(of_b) && !(std::isnan(of_a) && std::isnan(of_b))) return false;
    }
    return true;
  }

  const DataType type_;
  const size_t k_;
  bool feedback_;
  CudaTopK top_k_;
  DeviceArray x_, residual_, values_, indices_;
  std::unique_ptr<DeviceArray> workspace_;
};

constexpr DataType kTypes[] = {DataType::kFloat32, DataType::kFloat16, DataType::kBFloat16};

// Cold, then with a threshold that is known, of the same and of another vector.
void TestSelection(const Distribution& distribution, DataType type, size_t size, size_t k,
                   size_t shift, Random* random) {
  Subject subject(type, size, k, false, shift);
  const std::vector<uint32_t> first = Draw(distribution, type, size, random);
  subject.Expect(first, first, std::string(distribution.name) + ", cold");
  subject.Expect(first, first, std::string(distribution.name) + ", warm");
  const std::vector<uint32_t> second = Draw(distribution, type, size, random);
  subject.Expect(second, second, std::string(distribution.name) + ", another vector");
}

// Thresholds that are far too high, and far too low, for the next vector.
void TestDrift(DataType type, size_t size, size_t k, Random* random) {
  Subject subject(type, size, k, false, 0);
  for (double scale : {1.0, 0.01, 0.0, 100.0, 100.0, 1e-6, 1e4}) {
    const Distribution scaled = {"scaled", [=](Random* r) { return scale * Normal(r); }};
    const std::vector<uint32_t> words = Draw(scaled, type, size, random);
    subject.Expect(words, words, "scale " + std::to_string(scale));
  }
}

void TestFeedback(const Distribution& distribution, size_t size, size_t k, size_t shift,
                  Random* random) {
  Subject subject(DataType::kFloat32, size, k, true, shift);
  std::vector<uint32_t> sum(size, 0);
  for (int step = 0; step < 4; ++step) {
    const std::vector<uint32_t> x = Draw(distribution, DataType::kFloat32, size, random);
    for (size_t i = 0; i < size; ++i) sum[i] = Bits(Float(sum[i]) + Float(x[i]));
    subject.Expect(x, sum,
                   std::string(distribution.name) + ", feedback, step " + std::to_string(step));
    for (uint32_t index : Expected(DataType::kFloat32, sum, k)) sum[index] = 0;
  }
}

// The same bits from every call, whatever came between.
void TestDeterminism(Random* random) {
  const Distribution few = {"few values", [](Random* r) { return std::round(3 * Normal(r)); }};
  const size_t size = 300007, k = 3001;
  Subject subject(DataType::kFloat32, size, k, false, 0);
  const std::vector<uint32_t> words = Draw(few, DataType::kFloat32, size, random);
  const std::vector<uint32_t> others = Draw({"", Normal}, DataType::kFloat32, size, random);
  for (int repetition = 0; repetition < 10; ++repetition) {
    subject.Expect(words, words, "repeated");
    if (repetition % 3 == 2) subject.Expect(others, others, "in between");
  }
}

void TestBadArguments() {
  CudaTopK top_k;
  if (top_k.Init(DataType::kFloat32, false, 10, 11) == cudaSuccess) Fail("k above d was accepted");
  if (top_k.Init(DataType::kFloat16, true, 10, 1) == cudaSuccess) Fail("float16 residual");
  if (top_k.Init(DataType::kFloat64, false, 10, 1) == cudaSuccess) Fail("float64 was accepted");
}

// A part of the cases: numbers are drawn and sorted on the host, so several processes are faster.
struct Part {
  int number = 0;
  int count = 1;
};

int Test(int draws, uint64_t seed, Part part) {
  Random random(seed + part.number);
  TestBadArguments();
  TestDeterminism(&random);
  int cases = 0;
  const auto is_mine = [&] { return cases++ % part.count == part.number; };
  for (DataType type : kTypes) {
    for (const Distribution& distribution : Distributions()) {
      for (size_t size : {1, 2, 31, 513, 4099, 100003, 1048583}) {
        for (size_t k : {size_t{0}, size_t{1}, size / 1000, size / 100, size / 2, size}) {
          // Both by 16-byte loads and at an address that allows none.
          if (is_mine())
            TestSelection(distribution, type, size, k, k % 2 == 0 ? 0 : SizeOf(type), &random);
        }
      }
    }
    if (is_mine()) TestDrift(type, 200003, 1999, &random);
  }
  for (const Distribution& distribution : Distributions()) {
    for (size_t size : {1, 33, 5003, 200003, 1048583}) {
      for (size_t k : {size_t{0}, (size + 99) / 100, size}) {
        if (is_mine()) TestFeedback(distribution, size, k, k % 2 == 0 ? 0 : 4, &random);
      }
    }
  }
  for (const Distribution& distribution : Distributions()) {
    for (int draw = 0; draw < draws; ++draw) {
      if (!is_mine()) continue;
      const size_t size = 1 + random() % 65536;
      TestSelection(distribution, kTypes[draw % 3], size, 1 + random() % size, 0, &random);
    }
  }
  std::printf("%s, %d failures\n", failures == 0 ? "passed" : "FAILED", failures);
  return failures == 0 ? 0 : 1;
}

#ifdef __CUDACC__
// ---- Benchmark.

// The roofline: every element is read once, 64 bytes in flight for every thread as in the
// selection.
__global__ void __launch_bounds__(512, 2) ReadKernel(const float4* x, size_t size, float* sums) {
  float sum = 0;
  const size_t step = size_t{gridDim.x} * blockDim.x;
  size_t i = size_t{blockIdx.x} * blockDim.x + threadIdx.x;
  for (; i + 3 * step < size; i += 4 * step) {
    const float4 a = x[i], b = x[i + step], c = x[i + 2 * step], d = x[i + 3 * step];
    sum += a.x + a.y + a.z + a.w + b.x + b.y + b.z + b.w;
    sum += c.x + c.y + c.z + c.w + d.x + d.y + d.z + d.w;
  }
  for (; i < size; i += step) sum += x[i].x + x[i].y + x[i].z + x[i].w;
  sums[size_t{blockIdx.x} * blockDim.x + threadIdx.x] = sum;
}

// The same for error feedback: two arrays are read and one is written.
__global__ void __launch_bounds__(512, 2)
    AddKernel(const float4* x, float4* residual, size_t size) {
  const size_t step = size_t{gridDim.x} * blockDim.x;
  for (size_t i = size_t{blockIdx.x} * blockDim.x + threadIdx.x; i < size; i += step) {
    const float4 a = x[i], b = residual[i];
    residual[i] = {a.x + b.x, a.y + b.y, a.z + b.z, a.w + b.w};
  }
}

__global__ void MagnitudeKernel(const float* x, float* magnitudes, size_t size) {
  const size_t step = size_t{gridDim.x} * blockDim.x;
  for (size_t i = size_t{blockIdx.x} * blockDim.x + threadIdx.x; i < size; i += step) {
    magnitudes[i] = fabsf(x[i]);
  }
}

// Median of 15 runs of a batch, for one call, in microseconds.
double Microseconds(const std::function<void()>& call) {
  constexpr int kBatch = 10;
  cudaEvent_t begin, end;
  Check(cudaEventCreate(&begin), "cudaEventCreate");
  Check(cudaEventCreate(&end), "cudaEventCreate");
  std::vector<float> times;
  for (int run = -2; run < 15; ++run) {
    Check(cudaEventRecord(begin), "cudaEventRecord");
    for (int i = 0; i < kBatch; ++i) call();
    Check(cudaEventRecord(end), "cudaEventRecord");
    Check(cudaEventSynchronize(end), "a measured kernel");
    float milliseconds = 0;
    Check(cudaEventElapsedTime(&milliseconds, begin, end), "cudaEventElapsedTime");
    if (run >= 0) times.push_back(milliseconds * 1000 / kBatch);
  }
  cudaEventDestroy(begin);
  cudaEventDestroy(end);
  std::sort(times.begin(), times.end());
  return times[times.size() / 2];
}

// DeviceTopK of CUB on magnitudes that were computed before; 0 if this toolkit has none.
double CubMicroseconds(const DeviceArray& magnitudes, size_t size, size_t k,
                       const DeviceArray& values, const DeviceArray& indices) {
#ifdef TFDEAR_HAS_CUB_TOP_K
  const auto requirements = cuda::execution::require(cuda::execution::determinism::not_guaranteed,
                                                     cuda::execution::output_ordering::unsorted);
  size_t bytes = 0;
  const auto select = [&](void* memory) {
    Check(cub::DeviceTopK::MaxPairs(memory, bytes, magnitudes.data<const float>(),
                                    values.data<float>(), cuda::counting_iterator<uint32_t>(0),
                                    indices.data<uint32_t>(), static_cast<int64_t>(size),
                                    static_cast<int64_t>(k), requirements),
          "cub::DeviceTopK");
  };
  select(nullptr);
  const DeviceArray memory(bytes);
  return Microseconds([&] { select(memory.data<char>()); });
#else
  static_cast<void>(magnitudes), static_cast<void>(size), static_cast<void>(k);
  static_cast<void>(values), static_cast<void>(indices);
  return 0;
#endif
}

int Benchmark(size_t largest, uint64_t seed) {
  cudaDeviceProp device;
  Check(cudaGetDeviceProperties(&device, 0), "cudaGetDeviceProperties");
  const int blocks = device.multiProcessorCount * 2;
  std::printf("{\"device\": \"%s\", \"processors\": %d, \"times\": \"microseconds\", \"rows\": [\n",
              device.name, device.multiProcessorCount);
  Random random(seed);
  bool first = true;
  for (size_t size = size_t{256} << 10; size <= largest; size *= 2) {
    std::vector<float> host(size);
    for (float& x : host) x = static_cast<float>(Normal(&random));
    DeviceArray x(size * 4), residual(size * 4), sums(size_t{4} * 512 * blocks);
    x.Write(host.data());
    Check(cudaMemset(residual.data<char>(), 0, size * 4), "cudaMemset");
    const double read = Microseconds(
        [&] { ReadKernel<<<blocks, 512>>>(x.data<float4>(), size / 4, sums.data<float>()); });
    const double add = Microseconds(
        [&] { AddKernel<<<blocks, 512>>>(x.data<float4>(), residual.data<float4>(), size / 4); });
    const double copy = Microseconds([&] {
      Check(cudaMemcpyAsync(residual.data<char>(), x.data<char>(), size * 4,
                            cudaMemcpyDeviceToDevice),
            "cudaMemcpyAsync");
    });
    for (size_t k : {size / 1000, size / 100}) {
      DeviceArray values(k * 4), indices(k * 4);
      CudaTopK plain, feedback;
      Check(plain.Init(DataType::kFloat32, false, size, k), "CudaTopK::Init");
      Check(feedback.Init(DataType::kFloat32, true, size, k), "CudaTopK::Init");
      DeviceArray workspace(plain.WorkspaceBytes());
      void* memory = workspace.data<char>();
      Check(CudaTopK::Reset(memory, nullptr), "CudaTopK::Reset");
      const auto select = [&](const CudaTopK& top_k, float* with) {
        Check(top_k.Select(x.data<char>(), with, values.data<char>(), indices.data<uint32_t>(),
                           memory, nullptr),
              "CudaTopK::Select");
      };
      const double warm = Microseconds([&] { select(plain, nullptr); });
      const double cold = Microseconds([&] {
        Check(CudaTopK::Reset(memory, nullptr), "CudaTopK::Reset");
        select(plain, nullptr);
      });
      Check(cudaMemset(residual.data<char>(), 0, size * 4), "cudaMemset");
      // As in training: every step adds one gradient, and what is selected goes.
      const double with_feedback = Microseconds([&] { select(feedback, residual.data<float>()); });
      DeviceArray magnitudes(size * 4);
      MagnitudeKernel<<<blocks, 512>>>(x.data<float>(), magnitudes.data<float>(), size);
      const double cub = CubMicroseconds(magnitudes, size, k, values, indices);
      std::printf(
          "%s{\"d\": %zu, \"k\": %zu, \"read\": %.2f, \"copy\": %.2f, \"add\": %.2f, "
          "\"warm\": %.2f, \"cold\": %.2f, \"feedback\": %.2f, \"cub\": %.2f, "
          "\"warm_of_roofline\": %.3f, \"feedback_of_roofline\": %.3f}",
          first ? "" : ",\n", size, k, read, copy, add, warm, cold, with_feedback, cub, read / warm,
          add / with_feedback);
      std::fflush(stdout);
      first = false;
    }
  }
  std::printf("\n]}\n");
  return 0;
}
#endif

int Main(int argc, char** argv) {
  int draws = 1000;
  uint64_t seed = 1;
  size_t largest = size_t{128} << 20;
  Part part;
  bool benchmark = false;
  for (int i = 1; i < argc; ++i) {
    const std::string argument = argv[i];
    const bool has_value = i + 1 < argc;
    if (argument == "--benchmark") {
      benchmark = true;
    } else if (argument == "--draws" && has_value) {
      draws = std::atoi(argv[++i]);
    } else if (argument == "--seed" && has_value) {
      seed = std::strtoull(argv[++i], nullptr, 10);
    } else if (argument == "--part" && i + 2 < argc) {
      part.number = std::atoi(argv[++i]);
      part.count = std::max(std::atoi(argv[++i]), 1);
    } else if (argument == "--largest" && has_value) {
      largest = std::strtoull(argv[++i], nullptr, 10);
    } else {
      std::fprintf(stderr, "Unknown argument %s; see the comment at the top of the source.\n",
                   argv[i]);
      return 2;
    }
  }
  int devices = 0;
  if (cudaGetDeviceCount(&devices) != cudaSuccess || devices == 0) {
    std::printf("no GPU: nothing was run\n");
    return 77;
  }
#ifdef __CUDACC__
  if (benchmark) return Benchmark(largest, seed);
#endif
  return Test(draws, seed, part);
}

}  // namespace
}  // namespace tfdear

int main(int argc, char** argv) { return tfdear::Main(argc, argv); }

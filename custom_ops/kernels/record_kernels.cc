// Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
// Raw records of files, through TensorFlow's file systems.
#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/lib/core/coding.h"
#include "tensorflow/core/lib/hash/crc32c.h"
#include "tensorflow/core/lib/io/record_reader.h"
#include "tensorflow/core/platform/env.h"
#include "tensorflow/core/platform/file_system.h"

namespace tfdear {
namespace {

using tensorflow::OpKernelContext;
using tensorflow::RandomAccessFile;
using tensorflow::Tensor;
using tensorflow::tstring;

// What a record has around its contents: its length, and two checksums.
constexpr int64_t kFrameBytes = 16;

// "DATA_LOSS: ...".
std::string TextOfError(const absl::Status& status) {
  return absl::StrCat(absl::StatusCodeToString(status.code()), ": ", status.message());
}

class IndexRecordsOp : public tensorflow::OpKernel {
 public:
  using OpKernel::OpKernel;

  void Compute(OpKernelContext* context) override {
    const std::string path(context->input(0).scalar<tstring>()());
    tensorflow::uint64 size = 0;
    OP_REQUIRES_OK(context, context->env()->GetFileSize(path, &size));
    std::unique_ptr<RandomAccessFile> file;
    OP_REQUIRES_OK(context, context->env()->NewRandomAccessFile(path, &file));
    tensorflow::io::RecordReader reader(file.get());
    std::vector<int64_t> offsets = {0};
    while (static_cast<tensorflow::uint64>(offsets.back()) < size) {
      tensorflow::uint64 offset = offsets.back();
      int skipped = 0;
      const absl::Status status = reader.SkipRecords(&offset, 1, &skipped);
      OP_REQUIRES(
          context, status.ok() && skipped == 1 && offset <= size,
          absl::DataLossError(absl::StrCat(
              path, ": no record of a TFRecord file begins at byte ", offsets.back(), " of ", size,
              " (", status.message(),
              "). It is cut off, compressed, or no such file; compressed files have no random "
              "access.")));
      offsets.push_back(static_cast<int64_t>(offset));
    }
    Tensor* output = nullptr;
    const int64_t count = offsets.size();
    OP_REQUIRES_OK(context, context->allocate_output(0, {count}, &output));
    std::copy(offsets.begin(), offsets.end(), output->flat<int64_t>().data());
  }
};

class ReadRecordsOp : public tensorflow::OpKernel {
 public:
  explicit ReadRecordsOp(tensorflow::OpKernelConstruction* context) : OpKernel(context) {
    OP_REQUIRES_OK(context, context->GetAttr("verify", &verify_));
  }

  void Compute(OpKernelContext* context) override {
    const auto paths = context->input(0).flat<tstring>();
    const auto files = context->input(1).flat<int64_t>();
    const auto begins = context->input(2).flat<int64_t>();
    const auto ends = context->input(3).flat<int64_t>();
    const int64_t count = files.size();
    OP_REQUIRES(context, begins.size() == count && ends.size() == count,
                absl::InvalidArgumentError("every record needs a file, a begin and an end"));
    for (int64_t i = 0; i < count; ++i) {
      OP_REQUIRES(context,
                  0 <= files(i) && files(i) < paths.size() && 0 <= begins(i) &&
                      begins(i) <= ends(i) - kFrameBytes,
                  absl::InvalidArgumentError(absl::StrCat("there can be no record ", i)));
    }
    Tensor *records = nullptr, *errors = nullptr;
    OP_REQUIRES_OK(context, context->allocate_output(0, {count}, &records));
    OP_REQUIRES_OK(context, context->allocate_output(1, {count}, &errors));
    struct Opened {
      std::unique_ptr<RandomAccessFile> file;
      absl::Status status;
    };
    std::vector<Opened> opened(paths.size());
    std::string buffer;
    // Records that lie one behind the other are read at once.
    for (int64_t first = 0, last = 0; first < count; first = last) {
      for (last = first + 1; last < count && files(last) == files(first) &&
                             begins(last) == ends(last - 1) &&
                             ends(last) - begins(first) <= kMostBytes;) {
        ++last;
      }
      Opened& open = opened[files(first)];
      if (open.file == nullptr && open.status.ok()) {
        open.status =
            context->env()->NewRandomAccessFile(std::string(paths(files(first))), &open.file);
      }
      absl::Status status = open.status;
      absl::string_view bytes;
      if (status.ok()) status = Read(*open.file, begins(first), ends(last - 1), &buffer, &bytes);
      for (int64_t i = first; i < last; ++i) {
        if (status.ok()) {
          const absl::Status parsed =
              Parse(bytes.substr(std::min<size_t>(begins(i) - begins(first), bytes.size()),
                                 ends(i) - begins(i)),
                    ends(i) - begins(i), &records->flat<tstring>()(i));
          if (parsed.ok()) continue;
          errors->flat<tstring>()(i) = TextOfError(parsed);
        } else {
          errors->flat<tstring>()(i) = TextOfError(status);
        }
      }
    }
  }

 private:
  static constexpr int64_t kMostBytes = 8 << 20;

  // What there is of the bytes [begin, end); fewer where the file ends.
  static absl::Status Read(const RandomAccessFile& file, int64_t begin, int64_t end,
                           std::string* buffer, absl::string_view* bytes) {
    buffer->resize(end - begin);
    const absl::Status status = file.Read(begin, *bytes, absl::MakeSpan(*buffer));
    return absl::IsOutOfRange(status) ? absl::OkStatus() : status;
  }

  // The contents of a record of so many bytes, frame included.
  absl::Status Parse(absl::string_view bytes, size_t expected, tstring* content) const {
    if (bytes.size() < expected) return absl::DataLossError("the file ends within it");
    const size_t length = expected - kFrameBytes;
    if (tensorflow::core::DecodeFixed64(bytes.data()) != length ||
        (verify_ && !(Matches(bytes.substr(0, 8), bytes.data() + 8) &&
                      Matches(bytes.substr(12, length), bytes.data() + 12 + length)))) {
      return absl::DataLossError("its checksum does not match: it is damaged, or was changed");
    }
    content->assign(bytes.data() + 12, length);
    return absl::OkStatus();
  }

  static bool Matches(absl::string_view bytes, const char* masked) {
    return tensorflow::crc32c::Unmask(tensorflow::core::DecodeFixed32(masked)) ==
           tensorflow::crc32c::Value(bytes.data(), bytes.size());
  }

  bool verify_ = true;
};

class ReadFilesOp : public tensorflow::OpKernel {
 public:
  using OpKernel::OpKernel;

  void Compute(OpKernelContext* context) override {
    const auto paths = context->input(0).flat<tstring>();
    Tensor *contents = nullptr, *errors = nullptr;
    OP_REQUIRES_OK(context, context->allocate_output(0, {paths.size()}, &contents));
    OP_REQUIRES_OK(context, context->allocate_output(1, {paths.size()}, &errors));
    for (int64_t i = 0; i < paths.size(); ++i) {
      std::string content;
      const absl::Status status =
          tensorflow::ReadFileToString(context->env(), std::string(paths(i)), &content);
      if (status.ok()) {
        contents->flat<tstring>()(i) = content;
      } else {
        errors->flat<tstring>()(i) = TextOfError(status);
      }
    }
  }
};

using tensorflow::DEVICE_CPU;
REGISTER_KERNEL_BUILDER(Name("DearReadFiles").Device(DEVICE_CPU), ReadFilesOp);
REGISTER_KERNEL_BUILDER(Name("DearIndexRecords").Device(DEVICE_CPU), IndexRecordsOp);
REGISTER_KERNEL_BUILDER(Name("DearReadRecords").Device(DEVICE_CPU), ReadRecordsOp);

}  // namespace
}  // namespace tfdear
